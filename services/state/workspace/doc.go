// Package workspace is the domain model of a workspace. It is pure, except that [New] makes the id of a workspace: the
// caller passes the time, and nothing is read or stored here.
//
// A method that decides returns the changed copy and the public events. It does not change the receiver. Three inputs
// change a workspace:
//
//   - Users: [New], [Workspace.SetDesired], [Workspace.SetSpec].
//   - The dispatcher: [Workspace.Applied] and the other methods in applied.go. They ignore revisions older than the
//     last one reported.
//   - The watcher: [Workspace.Observe] computes the actual state, completes restarts, and creates a new revision for a
//     lost or changed Deployment. [Workspace.Expire] follows it and enforces the age policies.
//
// The actual state is a function of everything stored about the workspace. It does not depend on the
// states before it, so a rebuild from the streams gives the same result.
package workspace
