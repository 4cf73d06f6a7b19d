package natsauth

import "lockstep.internal/libs/topology"

// KeyHolders returns the program that holds each key which [Init] creates. A principal holds its own key; the state
// service also holds those with which it authenticates others.
func KeyHolders(cell topology.Cell) map[string]string {
	holders := map[string]string{nameIssuer: holder(nameIssuer), nameExchange: holder(nameExchange)}
	for _, p := range StaticPrincipals(cell) {
		holders[p.Name] = holder(p.Name)
	}
	return holders
}

func holder(key string) string {
	switch key {
	case nameIssuer, nameExchange, PrincipalCallout, PrincipalSystem:
		return PrincipalState
	case PrincipalCells:
		return PrincipalOperator
	default:
		return key
	}
}
