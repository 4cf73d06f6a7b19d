// Package catalog is what schemas/events says: every event type, its schema, and the subject it rides on.
//
// The schemas are the source of truth of the wire, and everything else about events is generated from them. So [Load] is strict: it refuses,
// with all faults at once, a schema that breaks a rule of schemas/README.md, and any keyword that the compatibility check does not understand.
// What Load accepts can be generated from, compared and published without further checks.
package catalog
