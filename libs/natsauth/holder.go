package natsauth

import "lockstep.internal/libs/topology"

// KeyHolders returns the program that holds each key which [Init] creates. A principal holds its own key; the state
// service also holds those with which it authenticates others.
func KeyHolders(cell topology.Cell) map[string]string {
	holders := map[string]string{}
	for _, p := range StaticPrincipals(cell) {
		holders[p.Name] = p.Name
	}
	for _, name := range []string{nameIssuer, nameExchange, PrincipalCallout, PrincipalSystem} {
		holders[name] = PrincipalState
	}
	return holders
}
