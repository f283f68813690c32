// The start: where a document has the data of a page.

import { $, complain } from "./elements.js";
import { Page } from "./page.js";

const FORMAT = 1;

if (typeof document !== "undefined" && $("gattn-header")) {
  const header = JSON.parse($("gattn-header").textContent);
  if (header.format === FORMAT) new Page(header).start();
  else complain(`The data of this page have format ${header.format}, and its script reads format ${FORMAT}: write the page again, with one version of gattn.`);
}
