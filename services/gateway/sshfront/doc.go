// Package sshfront is the SSH server for people: ssh <workspace>@<gateway>. It authenticates them, asks package access
// whether they may enter, opens an SSH connection to the agent of the workspace, and passes channels and requests on,
// in both directions. So everything that the client and the agent both know works: terminals, files, forwarding.
//
// People authenticate with a registered public key, or with an access token as password. Each server has limits before
// anybody has authenticated: connections, the time of the handshake, and attempts.
//
// ProxyJump works, too: a connection to port 22 of a workspace's name (ssh -J <gateway> <workspace>) is answered by
// this server itself, with the same host key, and authenticates again.
//
// A connection ends when the right to it ends, such as when the workspace stops or is no longer shared.
package sshfront
