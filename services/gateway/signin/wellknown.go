package signin

import "net/http"

// WellKnown is what everybody may know about a gateway: GET /.well-known/lockstep of the sign-in host.
type WellKnown struct {
	Zone string `json:"zone"`
	SSH  SSH    `json:"ssh"`
}

// SSH is where the SSH server of the gateway is.
type SSH struct {
	// Address is host:port.
	Address string `json:"address"`
	// KnownHosts are lines for OpenSSH's file known_hosts.
	KnownHosts []string `json:"known_hosts"`
}

func (s *SignIn) wellKnown(w http.ResponseWriter, r *http.Request) { s.encode(w, r, s.WellKnown) }
