//! The unsupported parts of the suite, with the reasons. A row is the beginning of the name of a group or a test.

/// No document is ever fetched.
const REMOTE: &str = "refers to a document elsewhere";
/// Each schema is one document. Generators of tool schemas write JSON pointers.
const RESOURCE: &str =
    "several documents in one, told apart by $id; only JSON pointers into the one document are followed";
/// Generators of tool schemas write JSON pointers.
const NAMED: &str = "refers to a named place ($anchor, or $id with a fragment); only JSON pointers are followed";
/// The cost of such a reference depends on the place from which it is used, so it cannot be bounded in advance.
const DYNAMIC: &str = "a reference that is resolved while validating";
/// Only published drafts are known.
const METASCHEMA: &str = "a meta-schema of its own, which would have to be fetched";

pub(super) const REFUSED: &[(&str, &str)] = &[
    ("draft2020-12/anchor: Location-independent identifier", NAMED),
    ("draft2020-12/anchor: same $anchor with different base uri", RESOURCE),
    ("draft2020-12/defs: validate definition against metaschema", REMOTE),
    ("draft2020-12/dynamicRef: ", DYNAMIC),
    ("draft2020-12/optional/anchor: $anchor inside an enum", NAMED),
    ("draft2020-12/optional/cross-draft: refs to historic drafts", REMOTE),
    ("draft2020-12/optional/dynamicRef: ", DYNAMIC),
    ("draft2020-12/optional/ecmascript-regex: \\a is not an ECMA 262 control escape", REMOTE),
    ("draft2020-12/optional/format-assertion: ", METASCHEMA),
    ("draft2020-12/optional/id: $id inside an enum", RESOURCE),
    ("draft2020-12/optional/unknownKeyword: $id inside an unknown keyword", RESOURCE),
    ("draft2020-12/ref: $id must be resolved against nearest parent", RESOURCE),
    ("draft2020-12/ref: Recursive references between schemas", RESOURCE),
    ("draft2020-12/ref: URN base URI with URN and JSON pointer ref", RESOURCE),
    ("draft2020-12/ref: URN base URI with URN and anchor ref", NAMED),
    ("draft2020-12/ref: URN ref with nested pointer ref", RESOURCE),
    ("draft2020-12/ref: order of evaluation: $id and $anchor and $ref", NAMED),
    ("draft2020-12/ref: order of evaluation: $id and $ref", RESOURCE),
    ("draft2020-12/ref: ref to ", RESOURCE),
    ("draft2020-12/ref: ref with absolute-path-reference", RESOURCE),
    ("draft2020-12/ref: refs with relative uris and defs", RESOURCE),
    ("draft2020-12/ref: relative refs with absolute uris and defs", RESOURCE),
    ("draft2020-12/ref: remote ref, containing refs itself", REMOTE),
    ("draft2020-12/ref: simple URN base URI with $ref via the URN", RESOURCE),
    ("draft2020-12/refRemote: ", REMOTE),
    ("draft2020-12/unevaluatedItems: unevaluatedItems with $dynamicRef", DYNAMIC),
    ("draft2020-12/unevaluatedProperties: unevaluatedProperties with $dynamicRef", DYNAMIC),
    ("draft2020-12/vocabulary: ", METASCHEMA),
    ("draft7/definitions: validate definition against metaschema", REMOTE),
    ("draft7/optional/cross-draft: refs to future drafts", REMOTE),
    ("draft7/optional/id: id inside an enum", RESOURCE),
    ("draft7/optional/unknownKeyword: $id inside an unknown keyword", RESOURCE),
    ("draft7/ref: $id must be resolved against nearest parent", RESOURCE),
    ("draft7/ref: $ref prevents a sibling $id from changing the base uri", RESOURCE),
    ("draft7/ref: Location-independent identifier", NAMED),
    ("draft7/ref: Recursive references between schemas", RESOURCE),
    ("draft7/ref: Reference an anchor with a non-relative URI", NAMED),
    ("draft7/ref: URN base URI with URN and JSON pointer ref", RESOURCE),
    ("draft7/ref: URN base URI with URN and anchor ref", NAMED),
    ("draft7/ref: ref to ", RESOURCE),
    ("draft7/ref: ref with absolute-path-reference", RESOURCE),
    ("draft7/ref: refs with relative uris and defs", RESOURCE),
    ("draft7/ref: relative refs with absolute uris and defs", RESOURCE),
    ("draft7/ref: remote ref, containing refs itself", REMOTE),
    ("draft7/ref: simple URN base URI with $ref via the URN", RESOURCE),
    ("draft7/refRemote: ", REMOTE),
];

pub(super) const OTHER_VERDICT: &[(&str, &str)] = &[
    ("draft2020-12/optional/format/", "the draft makes `format` a remark unless a schema's own meta-schema asserts it"),
    ("draft7/optional/format/idn-email: ", "internationalised names are not looked into"),
    ("draft7/optional/format/idn-hostname: ", "internationalised names are not looked into"),
];
