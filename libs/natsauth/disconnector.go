package natsauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	pingStatsSubject       = "$SYS.REQ.SERVER.PING"
	pingConnectionsSubject = "$SYS.REQ.SERVER.PING.CONNZ"
	kickSubjectFormat      = "$SYS.REQ.SERVER.%s.KICK"

	// connectionPage is how many connections of one user a server lists at once.
	connectionPage = 1024
	// firstSettlePause is until the second sweep; the pauses after it double. Who is admitted on
	// old knowledge is so cut after about as long as it took to be admitted.
	firstSettlePause = 50 * time.Millisecond
	// sweepTimeout bounds one sweep. Servers that do not answer in it are reported as an error.
	sweepTimeout = 2 * time.Second
)

// Disconnector cuts the live connections of a principal on every server of the cluster. It only
// cuts: the [Authenticator] must already refuse the principal, or its client is back at once.
type Disconnector struct {
	// Conn is connected as [PrincipalSystem]. Required.
	Conn *nats.Conn
	// AdmissionTimeout is how long an admission that began before the refusal may take to become a
	// connection; see Kick. Defaults to the time after which a server gives up on a responder (5 s)
	// and one more.
	AdmissionTimeout time.Duration
}

// ErrIncompleteDisconnect is wrapped by errors of [Disconnector] when some server did not answer;
// the connections there may live on until their time is over. Kick again.
var ErrIncompleteDisconnect = errors.New("not all servers answered")

// Disconnect cuts the principal's connections now, within a second, and again and again until
// Settle is over, so that one that was being admitted on old knowledge meanwhile does not slip
// through. It returns after the last time, with the number of connections it cut; call it from a
// place that can wait, or use [Disconnector.Sweep]. When the first time fails it returns at once,
// when a later one does it goes on, and returns what the last said.
func (k *Disconnector) Disconnect(ctx context.Context, principal Principal) (int, error) {
	kicked, err := k.DisconnectOnce(ctx, principal)
	if err != nil {
		return kicked, err
	}

	left := k.AdmissionTimeout
	if left == 0 {
		left = authTimeout + time.Second
	}

	for pause := firstSettlePause; left > 0; pause *= 2 {
		// What would be left over is shorter than the pause before it.
		if left < pause+pause/2 {
			pause = left
		}

		left -= pause
		timer := time.NewTimer(pause)

		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()

			return kicked, fmt.Errorf("wait for admissions under way: %w", context.Cause(ctx))
		}

		var more int

		more, err = k.DisconnectOnce(ctx, principal)
		kicked += more
	}

	return kicked, err
}

// DisconnectOnce cuts the connections that the principal has at this moment, however many, and
// returns how many they were.
func (k *Disconnector) DisconnectOnce(ctx context.Context, principal Principal) (int, error) {
	if err := principal.Validate(); err != nil {
		return 0, err
	}

	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()

	for kicked := 0; ; {
		connections, more, err := k.connections(ctx, principal)

		for _, c := range connections {
			kickErr := k.kick(ctx, c)
			if kickErr == nil {
				kicked++
			}

			err = errors.Join(err, kickErr)
		}

		if err != nil || !more {
			return kicked, err
		}
	}
}

type connection struct {
	server string
	id     uint64
}

// connectionQuery is the body of a CONNZ request; the filters work only together with auth.
type connectionQuery struct {
	Auth    bool   `json:"auth"`
	Account string `json:"acc"`
	User    string `json:"user"`
	Limit   int    `json:"limit"`
}

type connectionAnswer struct {
	Server struct {
		ID string `json:"id"`
	} `json:"server"`
	Data struct {
		Total       int `json:"total"`
		Connections []struct {
			ID uint64 `json:"cid"`
		} `json:"connections"`
	} `json:"data"`
	Error *serverError `json:"error"`
}

type serverError struct {
	Description string `json:"description"`
}

// connections asks all servers and waits until as many have answered as one of them says there are.
// There are more where a server has told of a whole page.
func (k *Disconnector) connections(ctx context.Context, principal Principal) (found []connection, more bool, err error) {
	servers, err := k.activeServers(ctx)
	if err != nil {
		return nil, false, err
	}

	query, err := json.Marshal(connectionQuery{
		Auth: true, Account: string(principal.Account()), User: principal.User(), Limit: connectionPage,
	})
	if err != nil {
		return nil, false, fmt.Errorf("encode connection query: %w", err)
	}

	inbox := k.Conn.NewInbox()

	answers, err := k.Conn.SubscribeSync(inbox)
	if err != nil {
		return nil, false, fmt.Errorf("subscribe to connection lists: %w", err)
	}
	defer answers.Unsubscribe() //nolint:errcheck // fails only on a closed connection

	if err := k.Conn.PublishRequest(pingConnectionsSubject, inbox, query); err != nil {
		return nil, false, fmt.Errorf("ask for connections: %w", err)
	}

	answered := make(map[string]bool)
	for len(answered) < servers {
		message, err := answers.NextMsgWithContext(ctx)
		if err != nil {
			return found, more, fmt.Errorf("%w: %d of %d: %w", ErrIncompleteDisconnect, len(answered), servers, err)
		}

		var answer connectionAnswer
		if err := json.Unmarshal(message.Data, &answer); err != nil {
			return found, more, fmt.Errorf("decode connection list: %w", err)
		}

		if answer.Error != nil {
			return found, more, fmt.Errorf("%w: server %s: %s", ErrIncompleteDisconnect, answer.Server.ID, answer.Error.Description)
		}

		answered[answer.Server.ID] = true
		more = more || len(answer.Data.Connections) == connectionPage

		for _, c := range answer.Data.Connections {
			found = append(found, connection{answer.Server.ID, c.ID})
		}
	}

	return found, more, nil
}

// activeServers asks any server how many there are in the cluster, itself included.
func (k *Disconnector) activeServers(ctx context.Context) (int, error) {
	message, err := k.Conn.RequestWithContext(ctx, pingStatsSubject, nil)
	if err != nil {
		return 0, fmt.Errorf("ask for the number of servers: %w", err)
	}

	var answer struct {
		Stats struct {
			ActiveServers int `json:"active_servers"`
		} `json:"statsz"`
	}
	if err := json.Unmarshal(message.Data, &answer); err != nil {
		return 0, fmt.Errorf("decode number of servers: %w", err)
	}

	return max(answer.Stats.ActiveServers, 1), nil
}

// kick cuts one connection. One that is gone already is no error.
func (k *Disconnector) kick(ctx context.Context, c connection) error {
	body, err := json.Marshal(map[string]uint64{"cid": c.id})
	if err != nil {
		return fmt.Errorf("encode kick: %w", err)
	}

	if _, err := k.Conn.RequestWithContext(ctx, fmt.Sprintf(kickSubjectFormat, c.server), body); err != nil {
		return fmt.Errorf("%w: kick connection %d on server %s: %w", ErrIncompleteDisconnect, c.id, c.server, err)
	}

	return nil
}
