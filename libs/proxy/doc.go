// Package proxy dials through the HTTP proxy of the environment (HTTPS_PROXY, HTTP_PROXY, NO_PROXY), for connections
// that the client itself encrypts or upgrades: WebSockets of NATS and of relays. The proxy resolves the name of the
// server. Names and addresses of this machine are dialed directly.
package proxy
