// Package dial reaches workspaces: their ports, and their agents by SSH.
//
// [Direct] is for gateways in the cluster of the workspaces. [Tunnel] is for all others: the relay agent of the cluster
// has dialed the relay, and connects to the Services.
package dial
