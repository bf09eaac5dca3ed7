/** Schemas of arguments and results: validators of a schema library, or plain JSON Schemas. */
import { ToolError } from "./error.js";

/** A JSON Schema. */
export type JsonSchema = { readonly [keyword: string]: unknown };

/** An issue of a validation. */
export interface SchemaIssue {
  readonly message: string;
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined;
}

/**
 * A validator with the interface Standard JSON Schema, such as a schema of zod 4.2, of ArkType, or of Valibot with
 * `toStandardJsonSchema`.
 */
export interface StandardSchema<Input = any, Output = any> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (
      value: unknown,
    ) => { readonly value: Output; readonly issues?: undefined } | { readonly issues: readonly SchemaIssue[] } | Promise<any>;
    readonly types?: { readonly input: Input; readonly output: Output } | undefined;
  };
}

/** A schema of arguments or of a result. */
export type Schema = StandardSchema | JsonSchema;

/** The value that a function receives for a schema. `any` for a plain JSON Schema. */
export type Received<S> = S extends StandardSchema ? NonNullable<S["~standard"]["types"]>["output"] : any;

/** The value that a function returns for a schema. */
export type Returned<S> = S extends StandardSchema ? NonNullable<S["~standard"]["types"]>["input"] : unknown;

/** The result of a validation: the value, or the issues. */
export type Validated = { value: unknown; issues?: undefined } | { issues: readonly SchemaIssue[] };

const ISSUES_MAX = 5;
const TARGET = "draft-2020-12";

interface Convertible {
  jsonSchema?: Record<"input" | "output", (options: { target: string }) => JsonSchema>;
}

function isStandard(schema: Schema): schema is StandardSchema {
  return "~standard" in schema;
}

/**
 * Returns the JSON Schema of a schema.
 *
 * @throws {TypeError} It has no JSON Schema.
 */
export function jsonSchemaOf(tool: string, option: "input" | "output", schema: Schema): JsonSchema {
  if ((typeof schema !== "object" && typeof schema !== "function") || schema === null) {
    throw new TypeError(`${tool}: ${option} is ${String(schema)}; expected a schema of a library such as zod, or a JSON Schema`);
  }
  if (!isStandard(schema)) return schema;
  const { vendor, jsonSchema } = schema["~standard"] as StandardSchema["~standard"] & Convertible;
  if (jsonSchema === undefined) {
    const hint = vendor === "zod" ? "use zod 4.2 or later" : vendor === "valibot" ? "wrap it in toStandardJsonSchema of @valibot/to-json-schema" : "pass a JSON Schema";
    throw new TypeError(`${tool}: ${option} is a schema of ${vendor} that gives no JSON Schema; ${hint}`);
  }
  let written: JsonSchema;
  try {
    written = jsonSchema[option]({ target: TARGET });
  } catch (error) {
    throw new TypeError(`${tool}: ${option} has no JSON Schema: ${(error as Error).message}`, { cause: error });
  }
  const { $schema: _, ...rest } = written;
  return rest;
}

/** Validates a value. A plain JSON Schema accepts every value: the worker validates arguments and results. */
export async function validate(schema: Schema, value: unknown): Promise<Validated> {
  if (!isStandard(schema)) return { value };
  return (await schema["~standard"].validate(value)) as Validated;
}

/** Returns the failure of a call whose arguments have these issues. */
export function invalid(issues: readonly SchemaIssue[]): ToolError {
  const said = issues.slice(0, ISSUES_MAX).map(({ path, message }) => {
    const steps = (path ?? []).map((step) => String(typeof step === "object" ? step.key : step));
    return steps.length > 0 ? `${steps.join(".")}: ${message}` : message;
  });
  const more = issues.length - said.length;
  return new ToolError("invalid_arguments", said.join("; ") + (more > 0 ? `; and ${more} more` : ""));
}
