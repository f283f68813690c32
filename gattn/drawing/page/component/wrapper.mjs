// Attention graphs as a component of other pages, by gattn. Made by gattn.drawing.write_component.

const STYLE = /*STYLE*/;
const MARKUP = /*MARKUP*/;

/** Start a view of its own: what follows is its scope, so that nothing is named before it. */
function startIn() {
/*SCRIPT*/
  return start(...arguments);
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
 */
function mount(element, payload, { fragment = "" } = {}) {
  const { header, blocks } = typeof payload === "string" ? JSON.parse(payload) : payload;
  views.get(element)?.stop();
  const root = element.shadowRoot ?? element.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(STYLE);
  root.adoptedStyleSheets = [sheet];
  root.replaceChildren(built(MARKUP));
  let [said, changed] = [fragment.replace(/^#/, ""), () => {}];
  const page = startIn(header, {
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
  });
  const view = {
    stop: () => page?.stopping.abort(),
    get fragment() {
      return said;
    },
    set fragment(now) {
      said = now.replace(/^#/, "");
      changed();
    },
  };
  views.set(element, view);
  return view;
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
    this.#view = this.#payload && this.isConnected ? mount(this, this.#payload, { fragment }) : null;
  }

  get fragment() {
    return this.#view?.fragment ?? this.#last ?? "";
  }

  set fragment(now) {
    if (this.#view) this.#view.fragment = now;
    else this.#last = now;
  }

  connectedCallback() {
    const show = () => {
      if (this.#view) return;
      this.#payload ??= this.querySelector('script[type="application/json"]')?.textContent;
      this.#show();
    };
    if (document.readyState === "loading" && !this.#payload) document.addEventListener("DOMContentLoaded", show, { once: true });
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
