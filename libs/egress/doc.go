// Package egress checks the addresses of outgoing connections to destinations that users choose, such as webhooks.
//
// The dialer of a [Config] checks each address right before it connects. So a name that resolves to another address,
// and a redirect, are checked too. A client with this dialer must not use a proxy, because the proxy would resolve the
// name.
package egress
