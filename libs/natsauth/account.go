package natsauth

// Account is one of the fixed NATS accounts of a cell.
type Account string

const (
	// AccountControl is the control plane: the only account with JetStream. Its users are static
	// nkeys.
	AccountControl Account = "CONTROL"
	// AccountAgents holds the agents. It has no JetStream and reaches the control plane through
	// imported services only.
	AccountAgents Account = "AGENTS"
	// AccountSubscribers holds readers from outside, each with a consumer of its own on the public
	// stream DEPLOYS. It has no JetStream and reaches those consumers through imported services
	// only.
	AccountSubscribers Account = "SUBSCRIBERS"
	// AccountListeners holds the same readers when they listen to facts as they are stored. It
	// imports one stream, and nobody in it may publish anything.
	AccountListeners Account = "LISTENERS"
	// AccountAuth holds the auth callout responders and nothing else.
	AccountAuth Account = "AUTH"
	// AccountSystem is the server's own account: connection lists and kicks.
	AccountSystem Account = "SYS"
)

// InboxPrefix is the only inbox a user of this name may subscribe to; pass it to
// [nats.CustomInboxPrefix]. Every user has its own, so that none can listen to the answers meant
// for another.
//
// [nats.CustomInboxPrefix]: https://pkg.go.dev/github.com/nats-io/nats.go#CustomInboxPrefix
func InboxPrefix(user string) string {
	return "_INBOX_" + user
}
