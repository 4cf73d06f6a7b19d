// Package domain is what the state service is about: workspaces and what may become of them, and the directory of people, projects and agents. It is
// pure: methods return the changed thing, stores save the difference, and time is given by the caller.
package domain
