package natsauth

import (
	"time"

	"github.com/nats-io/jwt/v2"

	"lockstep.internal/libs/topology"
)

// Names of the static principals that every cell has. Each has a key file; see [SeedFile].
const (
	// PrincipalState is the state service: it owns the streams and writes desired state.
	PrincipalState = "state"
	// PrincipalDeploys is the deploys service: it reads observations and writes facts about rollouts.
	PrincipalDeploys = "deploys"
	// PrincipalRunners is the runners service: it publishes the events of CI jobs and of runners, reads the decisions of
	// admission, and writes its cell's entry of the cell map.
	PrincipalRunners = "runners"
	// PrincipalAdmission is the admission service: it reads the events of CI jobs and of runners, and publishes decisions.
	PrincipalAdmission = "admission"
	// PrincipalGateway is the gateway: it reads who may enter which workspace.
	PrincipalGateway = "gateway"
	// PrincipalRouter is the router: it reads the cell map.
	PrincipalRouter = "router"
	// PrincipalRelay is the relay: it publishes connections of agents and audit records.
	PrincipalRelay = "relay"
	// PrincipalOperator is a person with the command line, who reads: tail, replay, dead letters.
	PrincipalOperator = "operator"
	// PrincipalCells is an administrator with the command line, who writes the cell map.
	PrincipalCells = "cells"
	// PrincipalCallout answers authorization requests.
	PrincipalCallout = "callout"
	// PrincipalSystem lists and closes connections.
	PrincipalSystem = "sys"
)

// StaticPrincipal is a control-plane user whose public nkey is in the server's configuration.
type StaticPrincipal struct {
	// Name is one to 63 of a-z, 0-9 and '-'. It names the key file and the inbox.
	Name string
	// Account is where it connects.
	Account Account
	// Permissions are what it may do. Publish and Subscribe must not be empty: that would mean
	// "everything".
	Permissions jwt.Permissions
}

// responseExpiry is how long a service may take to answer a request.
const responseExpiry = time.Minute

// StaticPrincipals lists the static principals of a cell with minimal permissions.
func StaticPrincipals(cell topology.Cell) []StaticPrincipal {
	return []StaticPrincipal{
		{PrincipalState, AccountControl, statePermissions(cell)},
		{PrincipalDeploys, AccountDeploys, deploysImports(cell).permissions(PrincipalDeploys)},
		{PrincipalRunners, AccountRunners, runnersImports(cell).permissions(PrincipalRunners)},
		{PrincipalAdmission, AccountAdmission, admissionImports(cell).permissions(PrincipalAdmission)},
		{PrincipalGateway, AccountGateway, gatewayImports(cell).permissions(PrincipalGateway)},
		{PrincipalRouter, AccountRouter, routerImports(cell).permissions(PrincipalRouter)},
		{PrincipalRelay, AccountRelay, relayPermissions(cell)},
		{PrincipalOperator, AccountOperator, operatorImports(cell).permissions(PrincipalOperator)},
		{PrincipalCells, AccountMap, mapImports().permissions(PrincipalCells)},
		{PrincipalCallout, AccountAuth, calloutPermissions()},
		{PrincipalSystem, AccountSystem, systemPermissions()},
	}
}

// statePermissions: manages streams and consumers but cannot delete history. It may purge the streams that hold
// current state and have no other writer. It retries and drops dead letters for administrators.
func statePermissions(cell topology.Cell) jwt.Permissions {
	return jwt.Permissions{
		Pub: jwt.Permission{
			Allow: jwt.StringList{
				cell.All(topology.FamilyDesired),
				cell.All(topology.FamilyDesiredLog),
				cell.All(topology.FamilyControl),
				cell.All(topology.FamilyWorkspace),
				cell.All(topology.FamilyDirectory),
				cell.All(topology.FamilyAccess),
				cell.Prefix(topology.FamilyAgent) + ".*.blocked",
				cell.Prefix(topology.FamilyAgent) + ".*.silent",
				cell.Prefix(topology.FamilyAgent) + ".*.returned",
				cell.Prefix(topology.FamilyDead) + "." + PrincipalState + ".>",
				cell.All(topology.FamilyObserved),
				cell.All(topology.FamilyApplied),
				cell.All(topology.FamilySink),
				cell.All(topology.FamilyJob),
				cell.All(topology.FamilyAdmission),
				"$JS.API.STREAM.MSG.DELETE." + topology.StreamDead,
				"$JS.API.INFO",
				"$JS.API.STREAM.CREATE.*",
				"$JS.API.STREAM.UPDATE.*",
				"$JS.API.STREAM.INFO.*",
				"$JS.API.STREAM.NAMES",
				"$JS.API.STREAM.LIST",
				"$JS.API.STREAM.MSG.GET.*",
				"$JS.API.DIRECT.GET.>",
				"$JS.API.CONSUMER.>",
				"$JS.API.STREAM.PURGE." + topology.StreamDesired,
				"$JS.API.STREAM.PURGE." + topology.StreamControl,
				"$JS.API.STREAM.PURGE." + topology.StreamDirectory,
				"$JS.ACK.>",
			},
		},
		Sub: jwt.Permission{
			Allow: jwt.StringList{
				InboxPrefix(PrincipalState) + ".>",
				cell.Prefix(topology.FamilySecret) + ".*.*",
				cell.Prefix(topology.FamilyConsumer) + ".*",
				"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>",
				"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>",
			},
		},
		Resp: &jwt.ResponsePermission{MaxMsgs: 1, Expires: responseExpiry},
	}
}

// relayPermissions allows the imported services and the bucket of relays, which a relay creates in its own account.
func relayPermissions(cell topology.Cell) jwt.Permissions {
	permissions := relayImports(cell).permissions(PrincipalRelay)
	permissions.Pub.Allow = append(permissions.Pub.Allow,
		"$KV."+topology.BucketRelays+".>",
		// Push consumers of a bucket use flow control: the client must respond.
		"$JS.FC."+topology.StreamRelays+".>",
		"$JS.API.STREAM.CREATE."+topology.StreamRelays,
		"$JS.API.STREAM.UPDATE."+topology.StreamRelays,
		"$JS.API.STREAM.INFO."+topology.StreamRelays,
		"$JS.API.STREAM.MSG.GET."+topology.StreamRelays,
		"$JS.API.DIRECT.GET."+topology.StreamRelays,
		"$JS.API.DIRECT.GET."+topology.StreamRelays+".>",
		"$JS.API.CONSUMER.CREATE."+topology.StreamRelays+".>",
		"$JS.API.CONSUMER.INFO."+topology.StreamRelays+".*",
		"$JS.API.CONSUMER.DELETE."+topology.StreamRelays+".*",
		"$JS.API.CONSUMER.MSG.NEXT."+topology.StreamRelays+".*",
	)

	return permissions
}

// CellWriter is the principal of the runners service of another cell. It connects to the NATS system that has the cell
// map, and may write and read the entry of its own cell only.
func CellWriter(cell topology.Cell) StaticPrincipal {
	name := cellWriterPrefix + string(cell)

	return StaticPrincipal{name, AccountCells, servicePermissions(cellEntryServices(cell), name)}
}

// cellWriterPrefix begins the names of the principals of other cells.
const cellWriterPrefix = "cell-"

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
