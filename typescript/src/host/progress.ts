/** Progress of a running call. The latest report is sent, at most one per interval. */

/** The worker stores one report per second. */
const INTERVAL_MS = 500;
/** The worker cuts texts further. */
const CHARS_MAX = 500;

/** The reports of one call. */
export class Progress {
  #latest: object | undefined;
  #timer: NodeJS.Timeout | undefined;
  #hasEnded = false;

  constructor(
    private readonly id: number,
    private readonly send: (message: object) => void,
  ) {}

  readonly report = (fraction: number | undefined, message = ""): void => {
    if (fraction !== undefined && !(typeof fraction === "number" && fraction >= 0 && fraction <= 1)) {
      throw new TypeError(`fraction is ${String(fraction)}; expected a number from 0 to 1, or undefined`);
    }
    if (this.#hasEnded) return;
    this.#latest = { type: "progress", id: this.id, fraction: fraction ?? null, message: String(message).slice(0, CHARS_MAX) };
    if (this.#timer === undefined) this.#flush();
  };

  #flush(): void {
    this.#timer = undefined;
    if (this.#latest === undefined) return;
    this.send(this.#latest);
    this.#latest = undefined;
    this.#timer = setTimeout(() => this.#flush(), INTERVAL_MS);
  }

  end(): void {
    this.#hasEnded = true;
    clearTimeout(this.#timer);
  }
}
