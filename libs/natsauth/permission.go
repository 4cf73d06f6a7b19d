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

// Kind says what an authenticated client is; it decides account and permissions.
type Kind int

const (
	// KindAgent is a watcher, dispatcher or relay agent in somebody's cluster.
	KindAgent Kind = iota + 1
	// KindSubscriber is a reader outside the control plane with a consumer of its own on DEPLOYS.
	KindSubscriber
	// KindListener is the same reader while it listens to deploy facts as they are stored. It is
	// apart, since it must not be able to make a request: the answer to one goes wherever its
	// sender says, so also to the subjects that others listen to.
	KindListener
)

// listenerSuffix tells, in the name of a user, the listener from the subscriber.
const listenerSuffix = ".live"

// ListenerUser is the name under which a subscriber connects to listen.
func ListenerUser(subscriber string) string { return subscriber + listenerSuffix }

// ParseSubscriberUser is the subscriber who connects under the name, and whether it does so to
// listen.
func ParseSubscriberUser(user string) (subscriber string, listens bool) {
	return strings.CutSuffix(user, listenerSuffix)
}

// Principal is who a client turned out to be. The authenticator makes it, the responder turns it
// into a user.
type Principal struct {
	// Kind is required.
	Kind Kind
	// AgentID is the agent's id, above zero; for KindAgent only.
	AgentID int64
	// Name is the subscriber's name: one to 63 of a-z, 0-9 and '-'; for KindSubscriber and
	// KindListener.
	Name string
	// Filter is the subjects that a listener may hear, as [topology.Cell.DeployFilter] returns it;
	// for KindListener only.
	Filter string
	// NotAfter ends the connection no later than this, for credentials that expire themselves.
	// Zero: no such end.
	NotAfter time.Time
}

// ErrInvalidPrincipal is wrapped by every error of [Principal.Validate].
var ErrInvalidPrincipal = errors.New("invalid principal")

var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Validate says what is wrong with the principal, if anything.
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

// Account is where the principal's connections live.
func (p Principal) Account() Account {
	switch p.Kind {
	case KindAgent:
		return AccountAgents
	case KindSubscriber:
		return AccountSubscribers
	default:
		return AccountListeners // where nobody can do anything but listen
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

// Permissions computes what the principal may publish and subscribe to in its cell. It is pure.
// Whatever it does not know may do nothing at all: an empty list would mean "everything" to the
// server.
func Permissions(cell topology.Cell, p Principal) jwt.Permissions {
	if p.Validate() != nil || topology.ValidateCell(string(cell)) != nil {
		return denyAll()
	}

	switch p.Kind {
	case KindAgent:
		return reaching(agentReach(cell, p.AgentID), p)
	case KindSubscriber:
		return reaching(subscriberReach(topology.SubscriberConsumer(p.Name)), p)
	case KindListener:
		filter, err := cell.DeployFilter(p.Filter)
		if err != nil || filter != p.Filter {
			return denyAll()
		}

		return jwt.Permissions{Pub: denyAll().Pub, Sub: jwt.Permission{Allow: jwt.StringList{filter}}}
	default:
		return denyAll()
	}
}

// reaching may publish to these services and hear their answers.
func reaching(reach []service, p Principal) jwt.Permissions {
	publish := make(jwt.StringList, 0, len(reach))

	for _, s := range reach {
		publish = append(publish, s.subject)
	}

	return jwt.Permissions{
		Pub: jwt.Permission{Allow: publish},
		Sub: jwt.Permission{Allow: jwt.StringList{InboxPrefix(p.User()) + ".>"}},
	}
}

func denyAll() jwt.Permissions {
	return jwt.Permissions{
		Pub: jwt.Permission{Deny: jwt.StringList{">"}},
		Sub: jwt.Permission{Deny: jwt.StringList{">"}},
	}
}
