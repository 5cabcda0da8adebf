// Numbers as people read them: few digits, a unit, and a dash where there is nothing.

export const NOTHING = "–";

/** Between a number and its unit: no line breaks there. */
export const GAP = "\u00a0";

/** A number with about three digits. */
export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 99_950) return `${(value / 1000).toFixed(0)}k`;
  if (size >= 9_995) return `${(value / 1000).toFixed(1)}k`;
  if (size >= 99.5 || Number.isInteger(value)) return value.toFixed(0);
  return size >= 9.95 ? value.toFixed(1) : value.toFixed(2);
}

/** A duration given in milliseconds, in the unit that fits. */
export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return NOTHING;
  if (ms === 0) return "0";
  if (ms < 1) return `${(ms * 1000).toFixed(0)}${GAP}µs`;
  if (ms < 9.995) return `${ms.toFixed(2)}${GAP}ms`;
  if (ms < 99.95) return `${ms.toFixed(1)}${GAP}ms`;
  if (ms < 999.5) return `${ms.toFixed(0)}${GAP}ms`;
  const s = ms / 1000;
  if (s < 9.995) return `${s.toFixed(2)}${GAP}s`;
  if (s < 99.95) return `${s.toFixed(1)}${GAP}s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 60) return `${minutes}${GAP}min ${Math.floor(s % 60)}${GAP}s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A duration on an axis: round numbers need no digits after the point. */
export function axisDuration(ms) {
  if (ms === 0) return "0";
  if (ms < 1) return `${Number((ms * 1000).toPrecision(3))}${GAP}µs`;
  return ms < 1000 ? `${Number(ms.toPrecision(3))}${GAP}ms` : `${Number((ms / 1000).toPrecision(3))}${GAP}s`;
}

/** A share of one as a percentage. */
export function percent(share) {
  if (share === null || share === undefined || !Number.isFinite(share)) return NOTHING;
  const value = share * 100;
  return `${value !== 0 && value < 9.95 ? value.toFixed(1) : value.toFixed(0)}${GAP}%`;
}

/** Bytes in binary units. */
export function bytes(value) {
  if (value === null || value === undefined) return NOTHING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  while (value >= 1024 && index < units.length - 1) {
    value /= 1024;
    index += 1;
  }
  return `${index === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)}${GAP}${units[index]}`;
}

/** The time of day of a moment in milliseconds since 1970. */
export function clock(unixMs) {
  const two = (value) => String(value).padStart(2, "0");
  const date = new Date(unixMs);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** The smallest of 1, 2 and 5 times a power of ten that is not below `value`. */
export function niceCeiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= value * 0.999999);
  return step * power;
}
