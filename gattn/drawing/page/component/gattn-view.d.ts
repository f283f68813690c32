/** What `gattn.drawing.to_payload` writes. */
export interface Payload {
  header: Record<string, unknown>;
  blocks: string[];
}

/** A view that is shown. Its `fragment` is its state, as in the address of a page: "view=matrix&layer=2&head=1". */
export interface View {
  fragment: string;
  /** Listen to nothing any more: to be called before the element goes. */
  stop(): void;
}

/**
 * Show a payload, or its JSON, in an element, which tells of each new state by an event "viewchange", and of numbers that
 * cannot be read by an event "viewerror".
 *
 * @throws {Error} if there is no such element, or the payload is of another format or not whole; the element says so, too.
 */
export function mount(element: HTMLElement, payload: Payload | string, options?: { fragment?: string }): View;

/** The element `<gattn-view>`, which stops by itself when it is removed, and shows the same view when it is added again. */
export class GattnView extends HTMLElement {
  payload: Payload | string | null;
  fragment: string;
}

declare global {
  interface HTMLElementTagNameMap {
    "gattn-view": GattnView;
  }
}
