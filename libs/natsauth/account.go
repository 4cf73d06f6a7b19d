package natsauth

// Account is one of the fixed NATS accounts of a cell.
type Account string

const (
	// AccountControl holds the streams. Its user is the state service, which owns them.
	AccountControl Account = "CONTROL"
	// AccountAgents holds the agents. It has no JetStream and reaches the control plane through
	// imported services only.
	AccountAgents Account = "AGENTS"
	// AccountSubscribers holds external readers. Each has its own consumer on DEPLOYS, JOBS or ADMISSION. It has no
	// JetStream and reaches those consumers through imported services only.
	AccountSubscribers Account = "SUBSCRIBERS"
	// AccountListeners holds the live subscriptions of the same readers. It imports one stream, and its users may not
	// publish.
	AccountListeners Account = "LISTENERS"
	// AccountDeploys holds the deploys service. It has no JetStream and reaches the control plane through imported
	// services only.
	AccountDeploys Account = "DEPLOYS"
	// AccountRunners holds the runners service. It has no JetStream and reaches the control plane through imported
	// services only.
	AccountRunners Account = "RUNNERS"
	// AccountAdmission holds the admission service. It has no JetStream and reaches the control plane through imported
	// services only.
	AccountAdmission Account = "ADMISSION"
	// AccountGateway holds the gateways. It has no JetStream and reaches the control plane through imported services only.
	AccountGateway Account = "GATEWAY"
	// AccountRouter holds the routers. It has no JetStream and imports the cell map only, to read it.
	AccountRouter Account = "ROUTER"
	// AccountRelay holds the relay. It reaches the control plane through imported services only. Its JetStream is in
	// memory and for the relays' bucket only; it imports the requests to the streams under [ControlAPIPrefix].
	AccountRelay Account = "RELAY"
	// AccountOperator holds the operator. It has no JetStream. It reads streams through imported services only.
	AccountOperator Account = "OPERATOR"
	// AccountCells holds the runners of other cells, which write their entries of the cell map. It has no JetStream and
	// imports no other writes: an acknowledgement would be stored as an entry if a user names its subject for replies.
	AccountCells Account = "CELLS"
	// AccountMap holds the administrator of the cell map. It has no JetStream and reaches the bucket through imported
	// services only.
	AccountMap Account = "MAP"
	// AccountAuth holds only the auth callout responders.
	AccountAuth Account = "AUTH"
	// AccountSystem is the server's own account: connection lists and kicks.
	AccountSystem Account = "SYS"
)

// InboxPrefix is the only inbox a user of this name may subscribe to; pass it to [nats.CustomInboxPrefix]. Each
// user has its own prefix, so no user can receive the replies for another.
//
// [nats.CustomInboxPrefix]: https://pkg.go.dev/github.com/nats-io/nats.go#CustomInboxPrefix
func InboxPrefix(user string) string {
	return "_INBOX_" + user
}
