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

	// connectionPage is the number of connections of one user that a server lists at once.
	connectionPage = 1024
	// firstPause is the pause before the second round; later pauses double. So a connection that was authorized
	// before the revocation is closed after at most twice the time that it took to connect.
	firstPause = 50 * time.Millisecond
	// roundTimeout bounds one round, as the caller's deadline does. A server that does not answer in time is an error.
	roundTimeout = 20 * time.Second
)

// Disconnector closes the connections of a principal on every server of the cluster. The [Authenticator]
// must refuse the principal first, or its client reconnects at once.
type Disconnector struct {
	// Conn is connected as [PrincipalSystem]. Required.
	Conn *nats.Conn
	// ConnectTimeout bounds how long a client that was authorized before the revocation may take to connect; see
	// Disconnect. Defaults to 6 s, a second more than a server waits for a responder.
	ConnectTimeout time.Duration
}

// ErrIncompleteDisconnect reports that a server did not answer. The connections there may live until
// their user JWTs expire. Retry the call.
var ErrIncompleteDisconnect = errors.New("not all servers answered")

// Disconnect closes the principal's connections now, within a second, and repeatedly until
// ConnectTimeout, so that it also closes connections that were being authorized meanwhile. It returns the
// number of closed connections after the last round; use [Disconnector.DisconnectOnce] where the caller
// cannot wait. It returns at once when the first round fails, else the error of the last round.
func (d *Disconnector) Disconnect(ctx context.Context, principal Principal) (int, error) {
	closed, err := d.DisconnectOnce(ctx, principal)
	if err != nil {
		return closed, err
	}
	left := d.ConnectTimeout
	if left == 0 {
		left = authTimeout + time.Second
	}

	for pause := firstPause; left > 0; pause *= 2 {
		// The last pause takes the rest.
		if left < pause+pause/2 {
			pause = left
		}

		left -= pause
		timer := time.NewTimer(pause)

		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()

			return closed, fmt.Errorf("wait for running authorizations: %w", context.Cause(ctx))
		}

		var more int

		more, err = d.DisconnectOnce(ctx, principal)
		closed += more
	}

	return closed, err
}

// DisconnectOnce closes the principal's current connections and returns their number. It takes at most 20 s. A server
// that does not answer does not delay the others.
func (d *Disconnector) DisconnectOnce(ctx context.Context, principal Principal) (int, error) {
	if err := principal.Validate(); err != nil {
		return 0, err
	}

	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()

	for closed := 0; ; {
		page, more, err := d.disconnectPage(ctx, principal)
		closed += page

		if err != nil || !more {
			return closed, err
		}
	}
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

// disconnectPage requests the connections of the principal from all servers and closes those of each response as it
// arrives. more is true if a server returned a full page.
func (d *Disconnector) disconnectPage(ctx context.Context, principal Principal) (closed int, more bool, err error) {
	servers, err := d.activeServers(ctx)
	if err != nil {
		return 0, false, err
	}

	answers, err := d.requestConnections(principal)
	if err != nil {
		return 0, false, err
	}
	defer answers.Unsubscribe() //nolint:errcheck // fails only on a closed connection

	var failed []error

	answered := make(map[string]bool)
	for len(answered) < servers {
		message, err := answers.NextMsgWithContext(ctx)
		if err != nil {
			failed = append(failed, fmt.Errorf("%w: %d of %d: %w", ErrIncompleteDisconnect, len(answered), servers, err))

			break
		}

		var answer connectionAnswer
		if err := json.Unmarshal(message.Data, &answer); err != nil {
			failed = append(failed, fmt.Errorf("decode connection list: %w", err))

			break
		}

		answered[answer.Server.ID] = true
		more = more || len(answer.Data.Connections) == connectionPage

		if answer.Error != nil {
			failed = append(failed, fmt.Errorf(
				"%w: server %s: %s", ErrIncompleteDisconnect, answer.Server.ID, answer.Error.Description,
			))
		}

		for _, c := range answer.Data.Connections {
			if err := d.closeConnection(ctx, answer.Server.ID, c.ID); err != nil {
				failed = append(failed, err)

				continue
			}

			closed++
		}
	}

	return closed, more, errors.Join(failed...)
}

// requestConnections requests the principal's connections from all servers and returns the subscription to the
// responses.
func (d *Disconnector) requestConnections(principal Principal) (*nats.Subscription, error) {
	query, err := json.Marshal(connectionQuery{
		Auth: true, Account: string(principal.Account()), User: principal.User(), Limit: connectionPage,
	})
	if err != nil {
		return nil, fmt.Errorf("encode connection query: %w", err)
	}

	inbox := d.Conn.NewInbox()

	answers, err := d.Conn.SubscribeSync(inbox)
	if err != nil {
		return nil, fmt.Errorf("subscribe to connection lists: %w", err)
	}

	if err := d.Conn.PublishRequest(pingConnectionsSubject, inbox, query); err != nil {
		return nil, errors.Join(fmt.Errorf("request connections: %w", err), answers.Unsubscribe())
	}

	return answers, nil
}

// activeServers returns the number of servers in the cluster.
func (d *Disconnector) activeServers(ctx context.Context) (int, error) {
	message, err := d.Conn.RequestWithContext(ctx, pingStatsSubject, nil)
	if err != nil {
		return 0, fmt.Errorf("request the number of servers: %w", err)
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

// closeConnection closes one connection of a server. A closed one is not an error.
func (d *Disconnector) closeConnection(ctx context.Context, server string, id uint64) error {
	body, err := json.Marshal(map[string]uint64{"cid": id})
	if err != nil {
		return fmt.Errorf("encode disconnect request: %w", err)
	}

	if _, err := d.Conn.RequestWithContext(ctx, fmt.Sprintf(kickSubjectFormat, server), body); err != nil {
		return fmt.Errorf("%w: close connection %d on server %s: %w", ErrIncompleteDisconnect, id, server, err)
	}

	return nil
}
