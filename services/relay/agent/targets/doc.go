// Package targets resolves target names to addresses, and checks that the agent allows them.
//
// A target is reachable if it is in the agent's configuration, which relays send ([Table]), and if the agent's
// local settings allow its address ([Allowed]).
//
// The gateway reaches workspaces without a configured name: [Workspaces] allows Services in their namespaces only.
//
// Relays may know different revisions for a moment. The highest revision that a connected relay has sent is
// used. So a restored control plane with lower revisions is accepted once the old relays are gone. While no
// relay is connected, the last configuration is kept. [Table.Use] calls back when its target is removed or its
// address changes.
//
// Invalid targets are skipped and reported; the other targets stay valid.
package targets
