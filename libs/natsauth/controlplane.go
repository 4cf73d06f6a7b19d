package natsauth

import (
	"time"

	"github.com/nats-io/jwt/v2"
)

// Names of the static principals that every cell has. Each has a key file; see [SeedFile].
const (
	// PrincipalState is the state service: it owns the streams and writes desired state.
	PrincipalState = "state"
	// PrincipalOperator is a person with the command line: tail, replay, dead letters.
	PrincipalOperator = "operator"
	// PrincipalCallout answers authorization requests.
	PrincipalCallout = "callout"
	// PrincipalSystem lists and kicks connections.
	PrincipalSystem = "sys"
)

// StaticPrincipal is a control-plane user whose public nkey stands in the server's configuration.
type StaticPrincipal struct {
	// Name is one to 63 of a-z, 0-9 and '-'. It names the key file and the inbox.
	Name string
	// Account is where it connects.
	Account Account
	// Permissions are what it may do. Publish and Subscribe must not be empty: that would mean "everything".
	Permissions jwt.Permissions
}

// responseExpiry is how long a service may take to answer a request.
const responseExpiry = time.Minute

// ControlPlane lists the static principals of a cell with the least that each needs.
func ControlPlane(cell string) []StaticPrincipal {
	return []StaticPrincipal{
		{PrincipalState, AccountControl, statePermissions(cell)},
		{PrincipalOperator, AccountControl, operatorPermissions(cell)},
		{PrincipalCallout, AccountAuth, calloutPermissions()},
		{PrincipalSystem, AccountSystem, systemPermissions()},
	}
}

// statePermissions: everything about streams and consumers except destroying history. Purging is left where the
// state service is the only writer and a message is the current truth of something that can cease to be.
func statePermissions(cell string) jwt.Permissions {
	return jwt.Permissions{
		Pub: jwt.Permission{
			Allow: jwt.StringList{
				cellSubject(cell, "desired.>"),
				cellSubject(cell, "control.>"),
				cellSubject(cell, "workspace.>"),
				cellSubject(cell, "directory.>"),
				cellSubject(cell, "dead.state.>"),
				"$JS.API.INFO",
				"$JS.API.STREAM.CREATE.*",
				"$JS.API.STREAM.UPDATE.*",
				"$JS.API.STREAM.INFO.*",
				"$JS.API.STREAM.NAMES",
				"$JS.API.STREAM.LIST",
				"$JS.API.STREAM.MSG.GET.*",
				"$JS.API.DIRECT.GET.>",
				"$JS.API.CONSUMER.>",
				"$JS.API.STREAM.PURGE." + streamDesired,
				"$JS.API.STREAM.PURGE." + streamControl,
				"$JS.API.STREAM.PURGE.DIRECTORY",
				"$JS.ACK.>",
			},
		},
		Sub: jwt.Permission{
			Allow: jwt.StringList{
				InboxPrefix(PrincipalState) + ".>",
				cellSubject(cell, "secret.*.*"),
				"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>",
				"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>",
			},
		},
		Resp: &jwt.ResponsePermission{MaxMsgs: 1, Expires: responseExpiry},
	}
}

// operatorPermissions: reads every stream, republishes dead letters to where they came from, and drops them.
func operatorPermissions(cell string) jwt.Permissions {
	return jwt.Permissions{
		Pub: jwt.Permission{
			Allow: jwt.StringList{
				cellSubject(cell, ">"),
				"$JS.API.INFO",
				"$JS.API.STREAM.INFO.*",
				"$JS.API.STREAM.NAMES",
				"$JS.API.STREAM.LIST",
				"$JS.API.STREAM.MSG.GET.*",
				"$JS.API.DIRECT.GET.>",
				"$JS.API.CONSUMER.CREATE.>",
				"$JS.API.CONSUMER.INFO.>",
				"$JS.API.CONSUMER.NAMES.*",
				"$JS.API.CONSUMER.LIST.*",
				"$JS.API.CONSUMER.DELETE.>",
				"$JS.API.CONSUMER.MSG.NEXT.>",
				"$JS.API.STREAM.MSG.DELETE." + streamDead,
				"$JS.API.STREAM.PURGE." + streamDead,
				"$JS.ACK.>",
			},
			Deny: jwt.StringList{cellSubject(cell, "secret.>")},
		},
		Sub: jwt.Permission{
			Allow: jwt.StringList{InboxPrefix(PrincipalOperator) + ".>", cellSubject(cell, ">")},
			Deny:  jwt.StringList{cellSubject(cell, "secret.>")},
		},
	}
}

func calloutPermissions() jwt.Permissions {
	return jwt.Permissions{
		Pub: jwt.Permission{Deny: jwt.StringList{">"}},
		Sub: jwt.Permission{Allow: jwt.StringList{
			InboxPrefix(PrincipalCallout) + ".>",
			// Only as a member of the queue: every request goes to one responder.
			calloutSubject + " " + calloutQueue,
		}},
		Resp: &jwt.ResponsePermission{MaxMsgs: 1, Expires: responseExpiry},
	}
}

func systemPermissions() jwt.Permissions {
	return jwt.Permissions{
		Pub: jwt.Permission{Allow: jwt.StringList{
			pingStatsSubject,
			pingConnectionsSubject,
			"$SYS.REQ.SERVER.*.KICK",
		}},
		Sub: jwt.Permission{Allow: jwt.StringList{InboxPrefix(PrincipalSystem) + ".>"}},
	}
}
