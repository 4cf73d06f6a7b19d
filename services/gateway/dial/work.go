package dial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/authority"
)

const (
	// workTimeout bounds the question to an agent, with the connection.
	workTimeout = 10 * time.Second
	// workLogin is the name of the gateway in the certificates for questions.
	workLogin = "gateway"
)

// errNoReports is returned for an agent that does not know the subsystem.
var errNoReports = errors.New("its agent is too old to report programs: configure a newer agent_image")

// Work asks the agent of a workspace whether programs of people work. The certificate permits neither terminals
// nor forwarding.
func (d Dialer) Work(ctx context.Context, e access.Entry) (workspaceagent.WorkReport, error) {
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()
	connection, err := d.connect(ctx, e, workLogin, authority.Rights{})
	if err != nil {
		return workspaceagent.WorkReport{}, err
	}
	client := ssh.NewClient(connection.Conn, connection.Channels, connection.Requests)
	defer func() {
		_ = client.Close() // the answer is there, or the error
		_ = client.Wait()
	}()
	stop := context.AfterFunc(ctx, func() { _ = client.Close() }) // ends what waits for the agent
	defer stop()
	report, err := askWork(client)
	if err != nil {
		return report, fmt.Errorf("ask the agent of workspace %s for programs: %w", e.Name, errors.Join(err, ctx.Err()))
	}
	return report, nil
}

func askWork(client *ssh.Client) (workspaceagent.WorkReport, error) {
	var none workspaceagent.WorkReport
	channel, requests, err := client.OpenChannel("session", nil)
	if err != nil {
		return none, err //nolint:wrapcheck // the caller says what failed
	}
	go ssh.DiscardRequests(requests) // ends with the connection
	known, err := channel.SendRequest("subsystem", true, ssh.Marshal(struct{ Name string }{
		workspaceagent.SubsystemProcesses,
	}))
	switch {
	case err != nil:
		return none, err //nolint:wrapcheck // see above
	case !known:
		return none, errNoReports
	}
	data, err := io.ReadAll(io.LimitReader(channel, workspaceagent.MaxWorkReport+1))
	if err != nil {
		return none, err //nolint:wrapcheck // see above
	}
	return workspaceagent.ParseWorkReport(data)
}
