// Small graphs.

const SVG = 'http://www.w3.org/2000/svg';

export function graph() {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('aria-hidden', 'true');
  return svg;
}

function part(svg, name, tag) {
  let node = svg.querySelector(`.${name}`);
  if (!node) {
    node = svg.appendChild(document.createElementNS(SVG, tag));
    node.setAttribute('class', name);
  }
  return node;
}

/** Draws points between two places, as a line and the area below it. Points that are further apart are not connected. */
export function line(svg, points, from, to, gap) {
  svg.setAttribute('viewBox', '0 0 300 30');
  svg.setAttribute('preserveAspectRatio', 'none');
  const most = Math.max(1e-9, ...points.map((point) => point[1])) * 1.15;
  const x = (place) => (((place - from) / (to - from)) * 300).toFixed(1);
  const y = (value) => (29 - (value / most) * 28).toFixed(1);
  let stroke = '';
  let area = '';
  let start = null;
  let last = null;
  const close = () => {
    if (last) area += `L${x(last[0])} 30L${x(start[0])} 30Z`;
  };
  for (const point of points) {
    const isNew = last === null || point[0] - last[0] > gap;
    if (isNew) {
      close();
      start = point;
      area += `M${x(point[0])} 30L${x(point[0])} ${y(point[1])}`;
    } else {
      area += `L${x(point[0])} ${y(point[1])}`;
    }
    stroke += `${isNew ? 'M' : 'L'}${x(point[0])} ${y(point[1])}`;
    last = point;
  }
  close();
  part(svg, 'area', 'path').setAttribute('d', area);
  part(svg, 'stroke', 'path').setAttribute('d', stroke);
}

/** Draws counts as columns. */
export function columns(svg, counts, height) {
  svg.setAttribute('viewBox', `0 0 ${counts.length * 5} ${height}`);
  svg.setAttribute('preserveAspectRatio', 'none');
  const most = Math.max(1, ...counts);
  const tall = (value) => (value === 0 ? 0 : Math.max(2, (value / most) * (height - 2)));
  const path = counts.map((value, at) => (value ? `M${at * 5} ${height}h4v${-tall(value).toFixed(1)}h-4Z` : '')).join('');
  part(svg, 'base', 'path').setAttribute('d', `M0 ${height - 0.5}H${counts.length * 5}`);
  part(svg, 'column', 'path').setAttribute('d', path);
}
