"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const ink = () => getComputedStyle(document.body).color;
const places = [...document.querySelectorAll("[data-figure]")];
const draw = (colour) => places.forEach((place) => {
  const figure = figures[Number(place.dataset.figure)];
  const layout = { ...figure.layout, font: { ...figure.layout.font, color: colour } };
  Plotly.react(place, figure.data, layout, { responsive: true, displaylogo: false, displayModeBar: false });
});
draw(ink());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(ink()));
const opened = [];
addEventListener("beforeprint", () => {
  document.querySelectorAll("details:not([open])").forEach((one) => { one.open = true; opened.push(one); });
  draw("#000");
});
addEventListener("afterprint", () => { opened.splice(0).forEach((one) => { one.open = false; }); draw(ink()); });
