"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const make = (name, parent) => parent.appendChild(document.createElement(name));

  // What a bar or a point says, beside the pointer. Only textContent: a name is text, whatever is written in it.
  const tip = make("div", document.body);
  tip.id = "tip";
  const show = (text, x, y) => {
    tip.textContent = text;
    tip.style.display = "block";
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18) + "px";
  };
  const hide = () => { tip.style.display = "none"; };
  for (const each of document.querySelectorAll(".bar[title], .stage[title]")) {
    const text = each.title;
    each.removeAttribute("title");
    each.setAttribute("aria-label", text);
    each.addEventListener("pointermove", (event) => show(text, event.clientX, event.clientY));
    each.addEventListener("pointerleave", hide);
  }

  // A point on the bars of one stage finds its other bars.
  for (const each of document.querySelectorAll("[data-stage]")) {
    const same = () => document.querySelectorAll("[data-stage='" + each.dataset.stage + "']");
    each.addEventListener("pointerenter", () => { for (const bar of same()) bar.classList.add("same"); });
    each.addEventListener("pointerleave", () => { for (const bar of same()) bar.classList.remove("same"); });
  }

  for (const plot of document.querySelectorAll(".plot[data-points]")) {
    const points = JSON.parse(plot.dataset.points);
    if (!points.length) continue;
    const cursor = make("div", plot);
    cursor.className = "cursor";
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const at = (event.clientX - box.left) / box.width;
      let best = points[0];
      for (const point of points) if (Math.abs(point[0] - at) < Math.abs(best[0] - at)) best = point;
      cursor.style.display = "block";
      cursor.style.left = best[0] * 100 + "%";
      show(best[1], event.clientX, event.clientY);
    });
    plot.addEventListener("pointerleave", () => { cursor.style.display = "none"; hide(); });
  }

  for (const table of document.querySelectorAll("table")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const each of heads) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => {
        const cell = row.cells[column];
        return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
      };
      const rows = [...body.rows].sort((a, b) => {
        const left = value(a), right = value(b);
        const order = typeof left === "number" ? left - right : left.localeCompare(right);
        return down ? -order : order;
      });
      body.append(...rows);
    }));
  }

  const button = document.getElementById("theme");
  button.hidden = false;
  const dark = () => getComputedStyle(root).colorScheme === "dark" ||
    (getComputedStyle(root).colorScheme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; label(); });
  label();
})();
