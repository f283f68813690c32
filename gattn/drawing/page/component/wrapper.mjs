// Attention graphs as a component of other pages, by gattn. Made by gattn.drawing.write_component.

const STYLE = /*STYLE*/;
const MARKUP = /*MARKUP*/;
const VERSION = /*VERSION*/;
const PROBLEM = ":host { display: block } p { margin: 8px 0; padding: 10px 14px; border: 1px solid; border-radius: 8px; font: 14px/1.45 system-ui, sans-serif; overflow-wrap: anywhere }";

/*CHECKS*/

/** Start a view of its own: what follows is its scope, so that nothing is named before it. */
function startIn() {
/*SCRIPT*/
  return start(...arguments);
}

function dressed(root, style, ...children) {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(style);
  root.adoptedStyleSheets = [sheet];
  root.replaceChildren(...children);
}

function built([tag, attributes, children]) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.map((child) => (typeof child === "string" ? child : built(child))));
  return made;
}

const views = new WeakMap();

/**
 * Show a payload in an element: the attention graphs that `gattn.drawing.to_payload` wrote.
 *
 * @param {HTMLElement} element - gets a shadow root, and events "viewchange" with `detail.fragment`
 * @param {string | object} payload - JSON, or what it says
 * @param {{fragment?: string}} [options] - which view to open with, as in the address of a page
 * @returns {{fragment: string, stop: () => void}} the view; set `fragment` to change it, and stop it before its element goes
 * @throws {Error} that says what was expected and what arrived; the element shows it, too
 */
function mount(element, payload, options = {}) {
  const root = rootOf(element);
  views.get(element)?.stop();
  views.delete(element);
  try {
    const view = shown(element, root, payloadOf(payload), optionsOf(options));
    views.set(element, view);
    return view;
  } catch (problem) {
    dressed(root, PROBLEM, built(["p", { role: "alert" }, [`gattn-view: ${problem.message}`]]));
    throw problem;
  }
}

/** Say which versions of gattn wrote payload and script. */
const versions = ({ version }) => `The payload is of gattn ${version}, this script of ${VERSION}; gattn.drawing.to_payload and gattn.drawing.write_component write both.`;

function shown(element, root, { header, blocks }, { fragment }) {
  dressed(root, STYLE, built(MARKUP));
  let [said, changed] = [fragment, () => {}];
  const where = {
    root,
    frame: element,
    isCompact: element.clientWidth < 1000,
    read: () => said,
    write(now) {
      said = now;
      element.dispatchEvent(new CustomEvent("viewchange", { detail: { fragment: now } }));
    },
    listen: (then) => (changed = then),
    address: () => "",
    block: (number) => blocks[number],
    check: () => checkWhole({ header, blocks }),
    complained: (message) => element.dispatchEvent(new CustomEvent("viewerror", { detail: { message } })),
    advice: "Write the payload again by gattn.drawing.to_payload",
    versions: versions(header),
  };
  const page = startIn(header, where);
  return {
    stop: () => page.stopping.abort(),
    get fragment() {
      return said;
    },
    set fragment(now) {
      said = fragmentOf(now);
      changed();
    },
  };
}

/**
 * `<gattn-view>`: shows the payload of its property `payload`, or of a script of JSON within it. The attribute
 * `fragment` is the view, as in the address of a page.
 */
class GattnView extends (globalThis.HTMLElement ?? Object) {
  static observedAttributes = ["fragment"];
  #payload = null;
  #view = null;
  #last = null; // the view that it had when it was removed

  get payload() {
    return this.#payload;
  }

  set payload(payload) {
    this.#payload = payload;
    this.#last = null;
    this.#show();
  }

  #show() {
    const fragment = this.#last ?? this.getAttribute("fragment") ?? "";
    this.#view?.stop();
    this.#view = null;
    if (this.#payload === null) this.shadowRoot?.replaceChildren();
    else if (this.isConnected) this.#view = mount(this, this.#payload, { fragment });
  }

  get fragment() {
    return this.#view?.fragment ?? this.#last ?? "";
  }

  set fragment(now) {
    if (this.#view) this.#view.fragment = now;
    else this.#last = fragmentOf(now);
  }

  connectedCallback() {
    const show = () => {
      if (this.#view) return;
      this.#payload ??= this.querySelector('script[type="application/json"]')?.textContent ?? null;
      this.#show();
    };
    if (document.readyState === "loading" && this.#payload === null) document.addEventListener("DOMContentLoaded", show, { once: true });
    else show();
  }

  disconnectedCallback() {
    this.#last = this.#view?.fragment ?? null;
    this.#view?.stop();
    this.#view = null;
  }

  attributeChangedCallback(_, before, now) {
    if (before !== null && now !== null) this.fragment = now;
  }
}

if (globalThis.customElements && !customElements.get("gattn-view")) customElements.define("gattn-view", GattnView);
