// Tables that are sorted by a click on a heading, show a page of rows at a time, and can be saved as CSV.

const PAGE_ROWS = 20;
const FEW_ROWS = 10;

// columns: { name, title, help, of: row → value, as: value → text, cell: row → node or text, number, hidden: () → bool }.
class SortedTable {
  constructor({ id, caption, columns, sort, pageRows = PAGE_ROWS, rowProperties = () => ({}) }) {
    const spoken = columns.map((column) => ({ ...column, title: inWords(column.title), help: column.help && inWords(column.help) }));
    Object.assign(this, { id, caption: inWords(caption), columns: spoken, pageRows, rowProperties, rows: [], page: 0 });
    this.sort = { name: sort, down: true };
    this.head = el("tr");
    this.body = el("tbody");
    this.pager = el("div", { class: "pager" });
    const table = el("table", { id }, el("caption", { class: "unseen" }, this.caption), el("thead", {}, this.head), this.body);
    this.element = el("div", {}, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": this.caption }, table), this.pager);
  }

  setRows(rows, note = "") {
    Object.assign(this, { rows, note, page: 0 });
    this.draw();
  }

  get shownColumns() {
    const isKnown = (column) => !this.rows.length || this.rows.some((row) => (column.of(row) ?? null) !== null);
    return this.columns.filter((column) => !column.hidden?.() && isKnown(column));
  }

  get sorted() {
    const column = this.shownColumns.find((shown) => shown.name === this.sort.name) ?? this.shownColumns[0];
    const isMissing = ({ value }) => value === null || value === undefined || Number.isNaN(value);
    const keyed = this.rows.map((row) => ({ value: column.of(row), row }));
    const known = keyed.filter((pair) => !isMissing(pair));
    const order = typeof known[0]?.value === "string" ? (left, right) => COLLATOR.compare(left.value, right.value) : (left, right) => left.value - right.value;
    known.sort(this.sort.down ? (left, right) => order(right, left) : order);
    return [...known, ...keyed.filter(isMissing)].map(({ row }) => row);
  }

  sortBy(column) {
    const same = this.sort.name === column.name;
    this.sort = { name: column.name, down: same ? !this.sort.down : Boolean(column.number) };
    this.page = 0;
    this.draw();
    announce(`sorted by ${column.title}, ${this.sort.down ? "descending" : "ascending"}`);
    this.head.querySelector(`[data-column="${column.name}"] button`)?.focus();
  }

  draw() {
    const columns = this.shownColumns;
    this.head.replaceChildren(...columns.map((column) => this.heading(column)));
    const from = this.page * this.pageRows;
    const rows = this.sorted.slice(from, from + this.pageRows);
    this.body.replaceChildren(...rows.map((row) => el("tr", this.rowProperties(row), ...columns.map((column) =>
      this.cell(column, row)))));
    if (!rows.length) this.body.append(el("tr", {}, el("td", { colspan: columns.length, class: "nothing" }, ["no matching rows", this.note].filter(Boolean).join(" \u00b7 "))));
    this.drawPager(from, rows.length);
  }

  heading(column) {
    const sorted = this.sort.name === column.name;
    const button = el("button", { type: "button", title: column.help ?? null, onclick: () => this.sortBy(column) }, column.title);
    const order = sorted ? (this.sort.down ? "descending" : "ascending") : "none";
    return el("th", { scope: "col", class: column.number ? "number" : null, "aria-sort": order, "data-column": column.name }, button);
  }

  cell(column, row) {
    const shown = column.cell ? column.cell(row) : column.as(column.of(row), row);
    return el("td", { class: column.number ? "number" : "words" }, shown);
  }

  drawPager(from, count) {
    const total = this.rows.length;
    const turn = (by) => { this.page += by; this.draw(); };
    const range = total > this.pageRows ? `${grouped(from + 1)}\u2013${grouped(from + count)} of ${grouped(total)}` : counted(total, "row");
    this.pager.replaceChildren(...[
      el("span", { class: "muted" }, total && this.note ? `${range} \u00b7 ${this.note}` : range),
      el("span", { class: "spacer" }),
      total > this.pageRows ? el("button", { type: "button", disabled: from === 0, onclick: () => turn(-1) }, "Previous") : null,
      total > this.pageRows ? el("button", { type: "button", disabled: from + count >= total, onclick: () => turn(1) }, "Next") : null,
      total ? el("button", { type: "button", onclick: () => this.save(), "aria-label": `Save as CSV: ${this.caption}` }, "CSV") : null,
    ].filter(Boolean));
  }

  // All rows in the order shown, with unformatted numbers.
  save() {
    const quoted = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
    const lines = this.sorted.map((row) => this.shownColumns.map((column) => quoted(String(column.of(row) ?? ""))).join(","));
    const text = [this.shownColumns.map((column) => column.name).join(","), ...lines].join("\n");
    const address = URL.createObjectURL(new Blob([`${text}\n`], { type: "text/csv" }));
    el("a", { href: address, download: `${this.id}.csv` }).click();
    URL.revokeObjectURL(address);
  }
}

const COLLATOR = new Intl.Collator("en", { numeric: true });

// A short table that is not sorted. columns: [title, row → cell, is it a number?, is the title for screen readers only?].
function plainTable(caption, columns, rows) {
  const cells = (row) => columns.map(([, of, isNumber]) => el("td", { class: isNumber ? "number" : "words" }, of(row)));
  const head = columns.map(([title, , isNumber, isUnseen]) =>
    el("th", { scope: "col", class: isNumber ? "number" : null }, isUnseen ? el("span", { class: "unseen" }, title) : title));
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": inWords(caption) },
    el("table", {}, el("caption", { class: "unseen" }, inWords(caption)), el("thead", {}, el("tr", {}, ...head)),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...cells(row))))),
  );
}

function searchField(label, id, onsearch) {
  const field = el("input", { type: "search", id, placeholder: label, "aria-label": label, autocomplete: "off", spellcheck: "false" });
  field.addEventListener("input", () => onsearch(field.value.trim().toLowerCase()));
  return field;
}

// Whether a text contains all words of a query.
function matches(query, text) {
  return query.split(/\s+/).every((word) => text.toLowerCase().includes(word));
}
