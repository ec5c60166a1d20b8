// Writes zod.json, schemas that Zod 4 makes: `npm install zod && node zod.mjs > zod.json`.
import * as z from "zod";

const node = z.object({ name: z.string(), get children() { return z.array(node); } });
const schemas = {
  numbers: z.object({
    between: z.number().min(0.5).max(9.75), positive: z.number().positive(), int: z.int(),
    multiple: z.number().multipleOf(0.01), below: z.number().lt(3), float32: z.float32(),
  }),
  formats: z.object({
    email: z.email(), uuid: z.uuid(), url: z.url(), datetime: z.iso.datetime(), date: z.iso.date(), time: z.iso.time(),
    duration: z.iso.duration(), ipv4: z.ipv4(), ipv6: z.ipv6(), base64: z.base64(),
  }),
  strings: z.object({
    regex: z.string().regex(/^[A-Z]{2}\d{4}$/), starts: z.string().startsWith("ab").max(6),
    ends: z.string().endsWith("yz").max(6), includes: z.string().includes("m").max(6), length: z.string().length(3),
    two: z.string().regex(/^a/).regex(/z$/).max(6),
  }),
  record: z.record(z.string(), z.number()),
  "record of an enum": z.record(z.enum(["a", "b"]), z.number()),
  "partial record": z.partialRecord(z.enum(["a", "b"]), z.number()),
  tuple: z.tuple([z.string(), z.number()]),
  "tuple with rest": z.tuple([z.string()]).rest(z.boolean()),
  union: z.discriminatedUnion("t", [
    z.object({ t: z.literal("a"), x: z.int() }), z.object({ t: z.literal("b"), y: z.string() }),
  ]),
  nullable: z.object({
    a: z.string().nullable(), b: z.string().optional(), c: z.string().default("x"), d: z.nullish(z.int()),
  }),
  literals: z.literal(["a", 1, true, null]),
  any: z.object({ a: z.any(), u: z.unknown() }),
  never: z.object({ a: z.never().optional() }),
  intersection: z.intersection(z.object({ a: z.string() }), z.object({ b: z.number() })),
  template: z.templateLiteral(["a-", z.number()]),
  recursive: node,
};
const made = Object.fromEntries(Object.entries(schemas).map(([name, schema]) => [name, z.toJSONSchema(schema)]));
console.log(JSON.stringify(made, null, 1));
