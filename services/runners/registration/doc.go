// Package registration creates, changes and deletes runners: for people ([Service]), and for the programs themselves
// ([Programs]).
//
// Runners of the instance are managed by administrators, those of a group by owners of the group, and those of projects
// by maintainers of the project that owns the runner, which is the first one. A runner of projects may be linked to more
// projects of its organization, unless it is locked. Who has a role where a runner works may see it; others learn
// nothing: not_found.
//
// A change is stored first, and then effective on this replica when the method returns. If a read of the store fails in
// between, the registry of the replica reads it a moment later.
package registration
