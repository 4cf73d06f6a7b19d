// Package authority signs the certificates with which the gateway opens SSH connections to workspaces (OpenSSH's
// PROTOCOL.certkeys). Each is for one workspace, one person and some minutes, and says what the person may do.
package authority
