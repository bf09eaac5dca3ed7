/** The declaration of a tool, and the registered tools. */
import { read } from "../json.js";
import type { ToolContext } from "./context.js";
import { contentBlocks } from "./image.js";
import { type Approval, type Cache, Checks, type Durability, type Reconcile } from "./options.js";
import { type JsonSchema, type Received, type Returned, type Schema, invalid, jsonSchemaOf, validate } from "./schema.js";

/**
 * Effect of a second run. `read` has none and `idempotent` has the same effect; both are retried after transient
 * failures. `once` is not repeated if it may have taken effect.
 */
export type Effect = "read" | "idempotent" | "once";

/** The declaration of a tool. */
export interface ToolOptions<Input extends Schema = Schema, Output extends Schema | undefined = Schema | undefined> {
  /** Name for models: 1 to 64 letters, digits, `_`, `.` and `-`. */
  name: string;
  /** Description for models: what the tool does, and when to use it. */
  description: string;
  /** Schema of the arguments, an object. */
  input: Input;
  /** Schema of the result. If a result does not fit, the call ends as `internal` with the code `invalid_output`. */
  output?: Output;
  /** Effect of a second run. Default: `once`. */
  effect?: Effect;
  /** Time limit of one attempt in milliseconds, at most an hour. Default: the worker's. */
  timeoutMs?: number;
  /** Stable id. Default: `tool_` and the name. */
  id?: string;
  /** Category. Default: `general`. */
  category?: string;
  /** Name for people. Default: the name. */
  displayName?: string;
  /** Semantic version. Default: `1.0.0`. */
  version?: string;
  /** Whether a person must approve each call. */
  requiresApproval?: boolean;
  /** Whose approval each call needs. Implies `requiresApproval`. */
  approval?: Approval;
  /**
   * Required arguments of a `once` tool that identify its effect, as JSON pointers such as `/to`. Equal calls of a tenant
   * share one outcome.
   */
  effectKey?: readonly string[];
  /**
   * Time in milliseconds after a call during which equal calls share its outcome, from 1 second to 31 days. Default: 1
   * day.
   */
  effectWindowMs?: number;
  /** Caching of a `read` tool's results. */
  cache?: Cache;
  /** Lookup that resolves the unknown outcome of a `once` call. */
  reconcile?: Reconcile;
  /** Durability that Redis confirms before a call runs. Default: `worker.durable` for `once` tools, and `none` for others. */
  durable?: Durability;
  /** Capabilities that the agent needs. */
  requiredCapabilities?: readonly string[];
  /** Features that the tenant's plan needs. */
  requiredFeatures?: readonly string[];
}

/** A tool of this name is already registered. */
export class DuplicateTool extends Error {
  constructor(message: string) {
    super(message);
    this.name = "DuplicateTool";
  }
}

const NAME = /^[A-Za-z0-9_.-]{1,64}$/;
const TIMEOUT_MS_MAX = 3_600_000;
const OPTIONS = [
  "name",
  "description",
  "input",
  "output",
  "effect",
  "timeoutMs",
  "id",
  "category",
  "displayName",
  "version",
  "requiresApproval",
  "approval",
  "effectKey",
  "effectWindowMs",
  "cache",
  "reconcile",
  "durable",
  "requiredCapabilities",
  "requiredFeatures",
];
/** Shares the registry between copies of this package, because modules can have another copy than the host. */
const REGISTRY = Symbol.for("tickfleet.tools");

/** A function with its declaration, made by {@link tool}. */
export class Tool<Args = any, Result = unknown> {
  /** Name for models. */
  readonly name: string;
  /** Effect of a second run. */
  readonly effect: Effect;
  /** The function. A direct call validates nothing. */
  readonly run: (args: Args, context: ToolContext) => Result | Promise<Result>;
  readonly #options: ToolOptions;
  readonly #input: JsonSchema;
  readonly #output: JsonSchema | undefined;
  readonly #guards: object;

  /** @internal */
  constructor(options: ToolOptions, run: (args: Args, context: ToolContext) => Result | Promise<Result>) {
    check(options, run);
    this.name = options.name;
    this.effect = options.effect ?? "once";
    this.run = run;
    this.#options = options;
    this.#input = jsonSchemaOf(options.name, "input", options.input);
    this.#output = options.output === undefined ? undefined : jsonSchemaOf(options.name, "output", options.output);
    if (this.#input.type !== "object") {
      throw new TypeError(`${options.name}: input has the type ${JSON.stringify(this.#input.type)}; arguments are an object`);
    }
    const checks = new Checks(this.name, this.effect, this.#input);
    checks.version(options.version);
    this.#guards = checks.guards(options);
  }

  /** Returns the declaration for the worker, as JSON. @internal */
  definition(): object {
    const { description, timeoutMs, id, category, displayName, version, requiresApproval } = this.#options;
    return {
      name: this.name,
      description,
      input_schema: this.#input,
      output_schema: this.#output ?? null,
      effect: this.effect,
      timeout_ms: timeoutMs === undefined ? null : Math.max(1, Math.round(timeoutMs)),
      id: id ?? null,
      category: category ?? null,
      display_name: displayName ?? null,
      version: version ?? null,
      requires_approval: requiresApproval ?? false,
      required_capabilities: this.#options.requiredCapabilities ?? [],
      required_features: this.#options.requiredFeatures ?? [],
      ...this.#guards,
    };
  }

  /**
   * Runs a call with arguments as JSON text.
   *
   * @throws {ToolError} The arguments are invalid, or the function failed.
   * @internal
   */
  async callWith(text: string, context: ToolContext): Promise<unknown> {
    const args = await validate(this.#options.input, read(text));
    if (args.issues !== undefined) throw invalid(args.issues);
    return this.run(args.value as Args, context);
  }

  /**
   * Returns a result as the output schema shows it: validators can remove or convert members. If the result does not
   * fit, returns it unchanged, because the worker reports it. Images become content blocks.
   *
   * @internal
   */
  async shown(result: unknown): Promise<unknown> {
    if (this.#options.output === undefined) return contentBlocks(result) ?? result;
    const checked = await validate(this.#options.output, result);
    return checked.issues === undefined ? checked.value : result;
  }
}

/**
 * Declares a function as a tool. The worker validates the arguments before it calls the function with them and the
 * context of the call.
 *
 * @throws {DuplicateTool} A tool of this name exists.
 * @throws {TypeError} An option is invalid, or a schema has no JSON Schema.
 */
export function tool<Input extends Schema, Output extends Schema | undefined = undefined>(
  options: ToolOptions<Input, Output>,
  run: (args: Received<Input>, context: ToolContext) => Returned<Output> | Promise<Returned<Output>>,
): Tool<Received<Input>, Returned<Output>> {
  const made = new Tool(options as ToolOptions, run);
  const tools = registry();
  if (tools.has(made.name)) throw new DuplicateTool(`the name ${JSON.stringify(made.name)} is registered twice`);
  tools.set(made.name, made as Tool);
  return made;
}

/** Returns the tools of this process by name. */
export function registered(): Tool[] {
  return [...registry().values()].sort((a, b) => (a.name < b.name ? -1 : 1));
}

function registry(): Map<string, Tool> {
  const global = globalThis as { [REGISTRY]?: Map<string, Tool> };
  return (global[REGISTRY] ??= new Map());
}

/** Rejects invalid options here, where the stack trace shows the line. The worker would only see an invalid frame. */
function check(options: ToolOptions, run: unknown): void {
  if (typeof options !== "object" || options === null) {
    throw new TypeError(`tool is given ${String(options)}; expected options and a function: tool({ name, … }, async (args) => …)`);
  }
  const { name } = options;
  const refuse = (option: string, found: unknown, expected: string) => {
    throw new TypeError(`${String(name)}: ${option} is ${JSON.stringify(found) ?? String(found)}; expected ${expected}`);
  };
  if (typeof name !== "string" || !NAME.test(name)) refuse("name", name, "1 to 64 characters of A-Z a-z 0-9 _ . -");
  for (const option of Object.keys(options)) {
    if (!OPTIONS.includes(option)) refuse("an option", option, `one of ${OPTIONS.join(", ")}`);
  }
  if (typeof run !== "function") refuse("the function", run, "a function");
  if (typeof options.description !== "string" || options.description.trim() === "") {
    refuse("description", options.description, "a text: models need it");
  }
  for (const option of ["id", "category", "displayName", "version"] as const) {
    if (options[option] !== undefined && typeof options[option] !== "string") refuse(option, options[option], "a text");
  }
  if (!["read", "idempotent", "once", undefined].includes(options.effect)) {
    refuse("effect", options.effect, "read, idempotent or once");
  }
  const { timeoutMs, requiresApproval } = options;
  if (timeoutMs !== undefined && !(typeof timeoutMs === "number" && timeoutMs > 0 && timeoutMs <= TIMEOUT_MS_MAX)) {
    refuse("timeoutMs", timeoutMs, `more than 0 and at most ${TIMEOUT_MS_MAX} milliseconds`);
  }
  if (requiresApproval !== undefined && typeof requiresApproval !== "boolean") {
    refuse("requiresApproval", requiresApproval, "true or false");
  }
  for (const option of ["requiredCapabilities", "requiredFeatures"] as const) {
    const words = options[option];
    const isList = words === undefined || (Array.isArray(words) && words.every((word) => typeof word === "string"));
    if (!isList) refuse(option, words, "a list of texts");
  }
}
