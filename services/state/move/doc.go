// Package move decides how the directory of an organization moves between two cells. It is pure.
//
// At the source, [Begin] decides whether an organization may leave. From then on, the organization cannot be changed,
// see [directory.Organization.Changeable]. At the target, a [Reader] checks the records of an import, and [NewPlan]
// compares them with what the cell has. [Move.End] ends a move in either cell.
//
// An import gives no rights outside its organization: it has no administrators, its roles are in the organization, and
// it has no token of a user who may act elsewhere in the target. It changes no user who exists.
package move
