// Scenes drawn: on a canvas, and as SVG.

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif";
const HALO = 3;
const images = new WeakMap();

export function imageOf({ pixels, columns: wide, rows }) {
  if (!images.has(pixels)) {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [Math.max(wide, 1), Math.max(rows, 1)];
    if (pixels.length) canvas.getContext("2d").putImageData(new ImageData(pixels, wide, rows), 0, 0);
    images.set(pixels, canvas);
  }
  return images.get(pixels);
}

const MOST_MEASURED = 20_000;

/** Make a function that measures texts as a canvas writes them, in units of their size. */
export function measurer() {
  const context = document.createElement("canvas").getContext("2d");
  const known = { 400: new Map(), 600: new Map() };
  return (text, isBold) => {
    const weight = isBold ? 600 : 400;
    const widths = known[weight];
    if (widths.size > MOST_MEASURED) widths.clear();
    if (!widths.has(text)) {
      context.font = `${weight} 100px ${FONT}`;
      widths.set(text, context.measureText(text).width / 100);
    }
    return widths.get(text);
  };
}

const PAINT = {
  line(context, m) {
    context.beginPath();
    context.moveTo(m.x1, m.y1);
    context.lineTo(m.x2, m.y2);
    context.stroke();
  },
  curves(context, m) {
    context.beginPath();
    for (const [x, y, ...rest] of m.paths) {
      context.moveTo(x, y);
      context.bezierCurveTo(...rest);
    }
    context.stroke();
  },
  rect(context, m) {
    context.beginPath();
    if (m.radius) context.roundRect(m.x, m.y, m.w, m.h, m.radius);
    else context.rect(m.x, m.y, m.w, m.h);
    if (m.fill && m.fill !== "none") context.fill();
    if (m.stroke) context.stroke();
  },
  text(context, m) {
    context.font = `${m.bold ? "600 " : ""}${m.size}px ${FONT}`;
    context.textAlign = { start: "left", middle: "center", end: "right" }[m.anchor];
    context.textBaseline = "alphabetic";
    context.direction = "ltr";
    if (m.halo) {
      [context.strokeStyle, context.lineWidth, context.lineJoin] = [m.halo, HALO, "round"];
      context.strokeText(m.text, m.x, m.y + 0.35 * m.size);
    }
    context.fillText(m.text, m.x, m.y + 0.35 * m.size);
  },
  cells(context, m) {
    context.imageSmoothingEnabled = m.w * devicePixelRatio < m.columns;
    context.drawImage(imageOf(m), m.x, m.y, m.w, m.h);
  },
  group(context, m) {
    context.translate(m.x, m.y);
    for (const mark of m.marks) paint(context, mark);
  },
};

function paint(context, mark) {
  context.save();
  if (mark.angle) {
    const [x, y] = [mark.cx ?? mark.x, mark.cy ?? mark.y];
    context.translate(x, y);
    context.rotate((mark.angle * Math.PI) / 180);
    context.translate(-x, -y);
  }
  context.lineCap = mark.mark === "curves" && !mark.dash ? "round" : "butt";
  context.lineWidth = mark.width ?? 1;
  if (mark.dash) context.setLineDash(mark.dash);
  if (mark.stroke) context.strokeStyle = mark.stroke;
  if (mark.fill) context.fillStyle = mark.fill;
  PAINT[mark.mark](context, mark);
  context.restore();
}

/** Draw a scene on a canvas, sharp on the screen that shows it. */
export function draw(canvas, scene, look, density = devicePixelRatio) {
  const sharp = Math.min(density, 8192 / Math.max(scene.width, scene.height, 1));
  canvas.width = Math.max(1, Math.round(scene.width * sharp));
  canvas.height = Math.max(1, Math.round(scene.height * sharp));
  const context = canvas.getContext("2d");
  context.scale(sharp, sharp);
  context.fillStyle = look.paper;
  context.fillRect(0, 0, scene.width, scene.height);
  for (const mark of scene.marks) paint(context, mark);
}

/** Draw a scene on a canvas of the page, in its own size. */
export function drawInPlace(canvas, scene, look) {
  [canvas.style.width, canvas.style.height] = [`${scene.width}px`, `${scene.height}px`];
  draw(canvas, scene, look);
}

/** Escape text for XML, whose text holds neither control characters nor lone surrogates. */
export function escaped(text) {
  const marks = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|\p{Cs}/gu, "\ufffd").replace(/[&<>"']/g, (c) => marks[c]);
}

const r2 = (value) => Number(value.toFixed(2));

function svgOf(mark, encode) {
  const attributes = (names) => Object.entries(names).filter(([, v]) => v !== undefined && v !== null).map(([k, v]) => ` ${k}="${escaped(String(v))}"`).join("");
  const turn = mark.angle ? `rotate(${mark.angle} ${r2(mark.cx ?? mark.x)} ${r2(mark.cy ?? mark.y)})` : undefined;
  const pen = { stroke: mark.stroke, "stroke-width": mark.stroke && r2(mark.width ?? 1), "stroke-dasharray": mark.dash?.join(" "), transform: turn };
  if (mark.mark === "line") return `<line${attributes({ x1: r2(mark.x1), y1: r2(mark.y1), x2: r2(mark.x2), y2: r2(mark.y2), ...pen })}/>`;
  if (mark.mark === "curves") {
    const d = mark.paths.map((points) => points.map(r2)).map(([x, y, ...rest]) => `M${x} ${y}C${rest.join(" ")}`);
    const title = mark.title ? `<title>${escaped(mark.title)}</title>` : "";
    return `<path${attributes({ d: d.join(""), fill: "none", ...pen, "stroke-linecap": mark.dash ? undefined : "round" })}>${title}</path>`;
  }
  if (mark.mark === "rect") return `<rect${attributes({ x: r2(mark.x), y: r2(mark.y), width: r2(mark.w), height: r2(mark.h), rx: mark.radius, fill: mark.fill ?? "none", ...pen })}/>`;
  if (mark.mark === "text") {
    const own = { x: r2(mark.x), y: r2(mark.y + 0.35 * mark.size), "font-size": mark.size, "font-weight": mark.bold ? 600 : undefined, "text-anchor": mark.anchor, fill: mark.fill, transform: turn };
    const halo = mark.halo && { stroke: mark.halo, "stroke-width": HALO, "stroke-linejoin": "round", "paint-order": "stroke" };
    return `<text${attributes({ ...own, ...halo })}>${escaped(mark.text)}</text>`;
  }
  if (mark.mark === "group") return `<g transform="translate(${r2(mark.x)} ${r2(mark.y)})">${mark.marks.map((m) => svgOf(m, encode)).join("\n")}</g>`;
  return cellsSVG(mark, encode);
}

/** Write few cells as rectangles, many as an image. */
function cellsSVG(mark, encode) {
  if (mark.pixels.length / 4 > 4096) {
    const box = `x="${r2(mark.x)}" y="${r2(mark.y)}" width="${r2(mark.w)}" height="${r2(mark.h)}"`;
    return `<image ${box} preserveAspectRatio="none" style="image-rendering: pixelated" href="${encode(mark)}"/>`;
  }
  const [wide, tall] = [mark.w / mark.columns, mark.h / mark.rows];
  const parts = [];
  for (let at = 0; at < mark.pixels.length / 4; at++) {
    const [red, green, blue, alpha] = mark.pixels.subarray(4 * at, 4 * at + 4);
    if (!alpha) continue;
    const [x, y] = [mark.x + (at % mark.columns) * wide, mark.y + Math.floor(at / mark.columns) * tall];
    parts.push(`<rect x="${r2(x)}" y="${r2(y)}" width="${r2(wide)}" height="${r2(tall)}" fill="rgb(${red},${green},${blue})"/>`);
  }
  return `<g shape-rendering="crispEdges">${parts.join("")}</g>`;
}

/** Write a scene as SVG; `encode` gives large cells as the address of an image. */
export function toSVG(scene, look, encode) {
  const [wide, tall] = [Math.ceil(scene.width), Math.ceil(scene.height)];
  return `<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" width="${wide}" height="${tall}" viewBox="0 0 ${wide} ${tall}" font-family="${escaped(FONT)}">
<rect width="${wide}" height="${tall}" fill="${look.paper}"/>
${scene.marks.map((mark) => svgOf(mark, encode)).join("\n")}
</svg>
`;
}
