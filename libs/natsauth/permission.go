package natsauth

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"

	"lockstep.internal/libs/topology"
)

// Kind is the kind of a client. It determines account and permissions.
type Kind int

const (
	// KindAgent is a watcher, dispatcher or relay agent in somebody's cluster.
	KindAgent Kind = iota + 1
	// KindSubscriber is an external reader with its own consumer on a public stream.
	KindSubscriber
	// KindListener is the live subscription of an external reader. It is a separate kind because it may not send
	// requests: the sender could direct a response to the subjects of other listeners.
	KindListener
)

// listenerSuffix is the suffix of a listener's user name.
const listenerSuffix = ".live"

// ListenerUser is the name under which a subscriber connects to listen.
func ListenerUser(subscriber string) string { return subscriber + listenerSuffix }

// ParseSubscriberUser returns the subscriber's name, and whether the user is its listener.
func ParseSubscriberUser(user string) (subscriber string, listens bool) {
	return strings.CutSuffix(user, listenerSuffix)
}

// Principal is an authenticated client. The authenticator returns it, and the responder creates a user for it.
type Principal struct {
	// Kind is required.
	Kind Kind
	// AgentID is the agent's id, above zero; for KindAgent only.
	AgentID int64
	// Name is the subscriber's name: one to 63 of a-z, 0-9 and '-'; for KindSubscriber and
	// KindListener.
	Name string
	// Filter contains the subjects that a subscriber may read, as [topology.Cell.SubscriberFilter] returns it; for
	// KindSubscriber and KindListener.
	Filter string
	// NotAfter is the latest end of the connection, for credentials that expire. Zero: no limit.
	NotAfter time.Time
}

// ErrInvalidPrincipal is wrapped by every error of [Principal.Validate].
var ErrInvalidPrincipal = errors.New("invalid principal")

var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Validate returns an error if the principal is invalid.
func (p Principal) Validate() error {
	switch p.Kind {
	case KindAgent:
		if p.AgentID <= 0 {
			return fmt.Errorf("%w: agent id %d is not above zero", ErrInvalidPrincipal, p.AgentID)
		}
	case KindSubscriber, KindListener:
		if !namePattern.MatchString(p.Name) {
			return fmt.Errorf("%w: subscriber name %q is not a DNS label", ErrInvalidPrincipal, p.Name)
		}
	default:
		return fmt.Errorf("%w: unknown kind %d", ErrInvalidPrincipal, p.Kind)
	}

	return nil
}

// Account returns the principal's NATS account.
func (p Principal) Account() Account {
	switch p.Kind {
	case KindAgent:
		return AccountAgents
	case KindSubscriber:
		return AccountSubscribers
	default:
		return AccountListeners // the account with the fewest permissions
	}
}

// User is the name under which the server lists the principal's connections; [Disconnector] finds
// them by it. For an agent it is the decimal id, the same that it connects with.
func (p Principal) User() string {
	switch p.Kind {
	case KindAgent:
		return strconv.FormatInt(p.AgentID, 10)
	case KindListener:
		return ListenerUser(p.Name)
	default:
		return p.Name
	}
}

// Permissions computes what the principal may publish and subscribe to in its cell. It is pure. Unknown kinds get
// no permissions: they are denied explicitly, because the server takes an empty list as "allow everything".
func Permissions(cell topology.Cell, p Principal) jwt.Permissions {
	if p.Validate() != nil || topology.ValidateCell(string(cell)) != nil {
		return denyAll()
	}

	switch p.Kind {
	case KindAgent:
		return servicePermissions(agentServices(cell, p.AgentID), p.User())
	case KindSubscriber, KindListener:
		return readerPermissions(cell, p)
	default:
		return denyAll()
	}
}

// readerPermissions allows a subscriber to read from its consumer, and a listener to subscribe.
func readerPermissions(cell topology.Cell, p Principal) jwt.Permissions {
	filter, err := cell.SubscriberFilter(p.Filter)
	if err != nil || filter != p.Filter {
		return denyAll()
	}

	if p.Kind == KindListener {
		return jwt.Permissions{Pub: denyAll().Pub, Sub: jwt.Permission{Allow: jwt.StringList{filter}}}
	}

	stream := topology.Subscriber{Name: p.Name, Filter: filter}.Stream()

	return servicePermissions(subscriberServices(stream, topology.SubscriberConsumer(p.Name)), p.User())
}

// servicePermissions allows a user to publish to the services and to subscribe to its inbox.
func servicePermissions(services []exportedService, user string) jwt.Permissions {
	publish := make(jwt.StringList, 0, len(services))

	for _, s := range services {
		publish = append(publish, s.subject)
	}

	return jwt.Permissions{
		Pub: jwt.Permission{Allow: publish},
		Sub: jwt.Permission{Allow: jwt.StringList{InboxPrefix(user) + ".>"}},
	}
}

func denyAll() jwt.Permissions {
	return jwt.Permissions{
		Pub: jwt.Permission{Deny: jwt.StringList{">"}},
		Sub: jwt.Permission{Deny: jwt.StringList{">"}},
	}
}
