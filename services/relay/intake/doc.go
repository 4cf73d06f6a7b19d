// Package intake is where agents dial in: it knows them by their tokens, and holds their tunnels for who asks.
//
// A replica counts as connected once it has asked, on its tunnel, for its configuration, of which it then hears every change. A connection ends when the tunnel does, when the agent
// drains it, and at once when the agent is revoked or has another token. All of it is told: to the hub, to the registry, and as events.
package intake
