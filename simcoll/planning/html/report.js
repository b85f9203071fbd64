"use strict";
// Draws the charts, sorts tables, compares two designs. All data is in the page; nothing is requested.
const data = JSON.parse(document.getElementById("data").textContent);

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// As many columns of a legend as its longest name leaves room for; Vega cuts what is wider off.
function legendColumns(spec, width) {
  const field = spec.encoding?.color?.field, values = spec.data?.values ?? [];
  const letters = Math.max(1, ...values.map((value) => String(value[field] ?? "").length));
  return Math.max(1, Math.min(4, Math.floor((width - 130) / (7 * letters + 30))));
}

function drawn(spec) {
  const ink = colour("--ink"), soft = colour("--soft"), line = colour("--line");
  const text = { labelColor: ink, titleColor: ink, labelFontSize: 12, titleFontSize: 12 };
  // Names of designs beside bars get at most a third of a narrow page.
  const narrow = document.body.clientWidth < 640;
  const labels = narrow ? Math.round(document.body.clientWidth / 3) : 340;
  return {
    ...spec,
    background: "transparent",
    config: {
      font: "system-ui, sans-serif",
      view: { stroke: line },
      axis: { ...text, gridColor: line, domainColor: soft, tickColor: soft, labelLimit: labels, labelFlush: false, labelSeparation: 8 },
      legend: { ...text, orient: "bottom", columns: narrow ? 1 : legendColumns(spec, document.body.clientWidth), labelLimit: 260, symbolBaseFillColor: ink, symbolBaseStrokeColor: ink },
      title: { color: ink },
      header: text,
      rule: { color: soft },
      text: { color: ink },
    },
  };
}

async function drawAll() {
  for (const place of document.querySelectorAll("[data-chart]")) {
    await vegaEmbed(place, drawn(data.charts[place.dataset.chart]), { mode: "vega-lite", actions: false, renderer: "svg", ast: true });
  }
  document.documentElement.dataset.drawn = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => {
      const cell = row.cells[column];
      return "value" in cell.dataset ? Number(cell.dataset.value || "nan") : cell.textContent;
    };
    const rows = [...table.tBodies[0].rows].sort((one, two) => {
      const a = value(one), b = value(two);
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
      return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
    });
    table.tBodies[0].append(...rows);
  }));
}

function compared() {
  const [a, b] = ["compare-a", "compare-b"].map((id) => data.compare.rows[document.getElementById(id).value]);
  const rows = data.compare.columns.map((column, at) => {
    const row = document.createElement("tr");
    const cells = [column.title + (column.unit ? ` (${column.unit})` : ""), a[at].text, b[at].text, ""];
    const change = column.number && b[at].value ? a[at].value / b[at].value - 1 : NaN;
    if (Number.isFinite(change)) cells[3] = `${change > 0 ? "+" : ""}${(100 * change).toFixed(1)} %`;
    else if (a[at].text !== b[at].text) cells[3] = "differs";
    cells.forEach((text, place) => {
      const cell = row.insertCell();
      cell.textContent = text;
      if (place) cell.className = "number";
    });
    if (Number.isFinite(change) && Math.abs(change) > 5e-4 && column.better) {
      row.cells[3].classList.add(change > 0 === column.better > 0 ? "better" : "worse");
    }
    return row;
  });
  document.getElementById("compare-rows").replaceChildren(...rows);
}

document.querySelectorAll("table.sortable").forEach(sortable);
if (data.compare) {
  for (const id of ["compare-a", "compare-b"]) document.getElementById(id).addEventListener("change", compared);
  compared();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
drawAll();
