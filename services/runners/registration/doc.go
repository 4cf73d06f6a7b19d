// Package registration creates, changes and deletes runners: for people ([Service]), and for the programs themselves
// ([Programs]).
//
// Administrators manage runners of the instance, owners of a group its runners, and maintainers of a project the
// runners that it owns. The first project of a runner owns it. A runner of projects may be linked to more projects of
// its organization, unless it is locked. Who has a role in the group or in one of the projects of a runner may see it.
// For others it does not exist: not_found.
//
// A change is stored first, and then effective on this replica when the method returns. If a read of the store fails in
// between, the registry of the replica reads it a moment later.
package registration
