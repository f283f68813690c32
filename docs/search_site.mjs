// What the built site's own search finds: `node docs/search_site.mjs SITE QUERY...` prints, per query, pages as JSON.
import { readFileSync } from "node:fs";
import { createContext, runInContext } from "node:vm";

const [site, ...queries] = process.argv.slice(2);
const nothing = { addEventListener() {}, getElementById: () => null, readyState: "loading" };
const page = createContext({ document: nothing, localStorage: { setItem() {} }, URLSearchParams, console });
page.window = page;
runInContext("var SPHINX_HIGHLIGHT_ENABLED = false, _ = text => text, _ready = () => {};", page);
for (const name of ["_static/language_data.js", "_static/searchtools.js", "searchindex.js"]) {
  runInContext(readFileSync(`${site}/${name}`, "utf8"), page);
}
const find = runInContext("query => Search._performSearch(...Search._parseQuery(query)).reverse()", page);
console.log(JSON.stringify(queries.map((query) => find(query).map(([name, , anchor]) => name + anchor))));
