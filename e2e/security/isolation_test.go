package security_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/state"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/natstest"
)

// TestIsolation lets an agent with real credentials try everything that could reach another agent.
func TestIsolation(t *testing.T) {
	t.Parallel()
	configure := func(_ string, config any) {
		switch cfg := config.(type) {
		case *state.Config:
			cfg.Agents.SilentAfter = time.Hour // the victim's agent and the attacker's do not report
		case *watcher.Config:
			// The victim's agent is in the bystander's cluster and does not report its workloads.
			if filepath.Base(cfg.CredentialsFile) == victimName+".json" {
				cfg.Workloads.Enabled = false
			}
		}
	}
	s := fixture.StartWith(t, stack.Options{Workloads: watcher.Workloads{Enabled: true}, Configure: configure})
	ours := s.NewDeployment("isolated", 2)
	ours.SetImage(fixture.SecondImage)
	ours.RequireFacts("started 1", "completed 1", "started 2", "completed 2")
	sc := newScenario(s)
	s.Sequence(
		fixture.Case{Name: "rollouts are visible to their project only", Test: func(s *fixture.System) {
			here := *ours
			here.System = s
			rolloutsAreVisibleToOwnProjectOnly(sc.in(s.T), &here)
		}},
		fixture.Case{
			Name: "an attacker changes and receives nothing",
			Test: func(s *fixture.System) { attackerChangesAndReceivesNothing(sc.in(s.T)) },
		},
		fixture.Case{
			Name: "a flooding agent starves no other",
			Test: func(s *fixture.System) { floodingAgentStarvesNobody(sc.in(s.T)) },
		},
		fixture.Case{
			Name: "credentials of others are refused",
			Test: func(s *fixture.System) { credentialsOfOthersAreRefused(sc.in(s.T)) },
		},
		fixture.Case{Name: "the victim recovers", Test: func(s *fixture.System) { victimRecovers(sc.in(s.T)) }},
	)
}

func (s *isolationScenario) in(t testing.TB) *isolationScenario {
	t.Helper()
	here := *s
	here.System = s.In(t)
	return &here
}

// victimName is the name of the victim's agent.
const victimName = "victim"

// awaitDrained waits until a number of rollouts in a namespace have drained: no more facts follow.
func awaitDrained(s *fixture.System, namespace string, rollouts int) {
	s.T.Helper()
	require.Eventually(s.T, func() bool {
		drained := 0
		for _, r := range s.Records(topology.FamilyDeploy) {
			if strings.Contains(r.Subject, "."+namespace+".") && strings.HasSuffix(r.Subject, ".drained") {
				drained++
			}
		}
		return drained == rollouts
	}, fixture.Timeout, fixture.PollInterval)
}

// newScenario prepares a working bystander, a victim with data in each of its streams, and an attacker.
func newScenario(s *fixture.System) *isolationScenario {
	t := s.T
	t.Helper()
	sc := &isolationScenario{System: s, bystander: s.AgentID, recorders: map[string]*recorder{}}
	victim, err := s.AddAgent(t.Context(), s.NewProject(victimName), victimName, s.Kubeconfig())
	require.NoError(t, err)
	sc.victim, err = natsauth.ReadAgentCredentials(victim.CredentialsFile)
	require.NoError(t, err)
	api, err := s.Client()
	require.NoError(t, err)
	sc.project = s.NewProject("attacker")
	sc.attacker, _, err = stack.RegisterAgent(t.Context(), api, sc.project, "attacker")
	require.NoError(t, err)
	for _, credentials := range []natsauth.AgentCredentials{sc.victim, sc.attacker} {
		s.Secrets.Add(credentials.Token)
		s.Secrets.Add(credentials.CurveSeed)
	}

	theirs := s.CreateWith(&statev1.CreateWorkspaceRequest{
		Name:      "victims",
		ProjectId: projectOf(s, victim.ID),
		AgentId:   victim.ID,
		Overrides: &statev1.WorkspaceOverrides{
			Image:     fixture.GoodImage,
			SecretEnv: map[string]string{"TOKEN": s.Secrets.New()},
		},
	})
	theirs.AwaitRunning()
	sc.own = s.CreateWith(&statev1.CreateWorkspaceRequest{
		Name:      "intruders",
		ProjectId: sc.project,
		AgentId:   sc.attacker.AgentID,
		Overrides: &statev1.WorkspaceOverrides{Image: fixture.GoodImage},
	})
	sc.workspaces = []*fixture.Workspace{theirs, s.CreateRunning("bystanders")}
	require.NoError(t, s.StopService(stack.WatcherOf(victim.Name)))
	require.NoError(t, s.StopService(stack.DispatcherOf(victim.Name)))
	// One message waits for the victim and another one is delivered but not acknowledged.
	theirs.Stop()
	awaitOutboxEmpty(sc.System)
	sc.leaveUnacknowledged()
	sc.awaitQuiet()
	sc.listen()
	return sc
}

// leaveUnacknowledged pulls a message as the victim's dispatcher and disconnects.
func (s *isolationScenario) leaveUnacknowledged() {
	t := s.T
	t.Helper()
	conn, err := connectAgent(s.victim)
	require.NoError(t, err)
	defer conn.Close()
	durable := topology.DispatcherConsumer(s.victim.AgentID)
	consumer, err := natstest.Open(t, conn).Consumer(t.Context(), topology.StreamDesired, durable)
	require.NoError(t, err)
	batch, err := consumer.Fetch(1, jetstream.FetchMaxWait(fixture.Timeout))
	require.NoError(t, err)
	require.NotNil(t, <-batch.Messages())
	require.NoError(t, batch.Error())
}

// awaitOutboxEmpty waits until the state service has published everything.
func awaitOutboxEmpty(s *fixture.System) {
	s.T.Helper()
	conn, err := pgx.Connect(s.T.Context(), s.Database().URL())
	require.NoError(s.T, err)
	defer conn.Close(s.T.Context())
	fixture.AwaitCluster(s.T, "the outbox is empty", func(ctx context.Context) (bool, error) {
		var waiting int
		err := conn.QueryRow(ctx, "SELECT count(*) FROM state.outbox").Scan(&waiting)
		return waiting == 0, err
	})
}

// awaitQuiet waits until the pull requests of the victim's stopped services have expired.
func (s *isolationScenario) awaitQuiet() {
	s.T.Helper()
	fixture.AwaitCluster(s.T, "pull requests of the victim's services expire", func(ctx context.Context) (bool, error) {
		for _, made := range topology.AgentConsumers(stack.Cell, s.victim.AgentID) {
			consumer, err := s.JS.Consumer(ctx, made.Stream, made.Config.Durable)
			if err != nil || consumer.CachedInfo().NumWaiting > 0 {
				return false, err
			}
		}
		return true, nil
	})
}

// listen records what arrives in inboxes whose names an attacker could guess.
func (s *isolationScenario) listen() {
	s.T.Helper()
	victim, err := connectAgent(s.victim)
	require.NoError(s.T, err)
	s.T.Cleanup(victim.Close)
	inboxes := natsauth.InboxPrefix(strconv.FormatInt(s.victim.AgentID, 10)) + ".>"
	s.recorders["the victim's inboxes"] = record(s.T, victim, inboxes)
	for _, name := range []string{
		natsauth.PrincipalState, natsauth.PrincipalDeploys, natsauth.PrincipalRunners, natsauth.PrincipalAdmission,
		natsauth.PrincipalRouter, natsauth.PrincipalRelay, natsauth.PrincipalOperator, natsauth.PrincipalCallout,
		natsauth.PrincipalSystem,
	} {
		guessed := natsauth.InboxPrefix(name) + "." + guessedInbox + ".>"
		s.recorders["inboxes of "+name] = record(s.T, principal(s.System, name), guessed)
	}
}

func attackerChangesAndReceivesNothing(s *isolationScenario) {
	i := newAttacker(s.System, s.attacker, s.own.ID)
	// The first permitted requests create subjects. They do not count as changes.
	i.awaitSettled()
	before := s.evidence()
	require.Greater(s.T, len(before), 30)
	attacks := s.attacks()
	require.Greater(s.T, len(attacks), 80)
	for _, attack := range attacks {
		s.Run(attack.name, func(t *testing.T) {
			here := i.in(t)
			attack.do(here)
			here.awaitSettled()
			here.requireNothingReceived()
			require.Equal(t, before, s.in(t).evidence())
		})
	}
	// A real change shows in the evidence.
	theirs := s.workspaces[0].In(s.T)
	theirs.Start()
	theirs.Stop()
	awaitOutboxEmpty(s.System)
	require.NotEqual(s.T, before, s.evidence())
}

// requestSecretsOf requests, on the attacker's own subject, the secrets of others' workspaces by
// their real names and digests.
func (i *attacker) requestSecretsOf(workspaces []*fixture.Workspace, victim int64) {
	i.t.Helper()
	for _, w := range workspaces {
		for _, digest := range append(digests(i.s, w), "", "x") {
			body, err := json.Marshal(map[string]string{"name": w.Name + "-env", "digest": digest})
			require.NoError(i.t, err)
			answer := i.request(stack.Cell.Secret(i.own.AgentID, w.ID), body)
			var reply map[string]json.RawMessage
			require.NoError(i.t, json.Unmarshal(answer.Data, &reply))
			require.Contains(i.t, string(reply["error"]), "not_found", "%s", answer.Data)
			require.Len(i.t, reply, 1)
			i.publishDenied(stack.Cell.Secret(victim, w.ID), body, nil)
		}
	}
}

// floodingAgentStarvesNobody sends one request of the victim behind many requests of the attacker.
func floodingAgentStarvesNobody(s *isolationScenario) {
	i := newAttacker(s.System, s.attacker, s.own.ID)
	victim, err := connectAgent(s.victim)
	require.NoError(s.T, err)
	defer victim.Close()
	digest := digests(s.System, s.workspaces[0])[0]
	body, err := json.Marshal(map[string]string{"name": s.workspaces[0].Name + "-env", "digest": digest})
	require.NoError(s.T, err)
	for range 5000 {
		i.publish(&nats.Msg{
			Subject: stack.Cell.Secret(i.own.AgentID, i.workspace),
			Reply:   i.inbox("answers"),
			Data:    []byte(`{"name":"x","digest":"y"}`),
		})
	}
	i.flush()
	answer, err := victim.Request(stack.Cell.Secret(s.victim.AgentID, s.workspaces[0].ID), body, fixture.Timeout)
	require.NoError(s.T, err, "the first request is answered")
	require.NotContains(s.T, string(answer.Data), "error")
	i.awaitSettled()
	i.requireNothingReceived()
}

// digests returns the digests of a workspace's secrets from its desired events.
func digests(s *fixture.System, w *fixture.Workspace) []string {
	s.T.Helper()
	var all []string
	for _, r := range s.Records(topology.FamilyDesired) {
		var data struct {
			WorkspaceID string `json:"workspace_id"`
			Secrets     []struct {
				Digest string `json:"digest"`
			} `json:"secrets"`
		}
		require.NoError(s.T, json.Unmarshal(r.Data, &data))
		for _, secret := range data.Secrets {
			if data.WorkspaceID == w.ID {
				all = append(all, secret.Digest)
			}
		}
	}
	return all
}

// publishFalseFacts repeats the victim's facts on the attacker's own subjects, where they become
// dead letters.
func (i *attacker) publishFalseFacts(s *isolationScenario) {
	victim, own := strconv.FormatInt(s.victim.AgentID, 10), strconv.FormatInt(i.own.AgentID, 10)
	count := 0
	for _, family := range []string{topology.FamilyObserved, topology.FamilyApplied} {
		prefix := stack.Cell.Prefix(family) + "."
		for _, r := range i.s.Records(family) {
			rest, ofVictim := strings.CutPrefix(r.Subject, prefix+victim+".")
			if !ofVictim {
				continue
			}
			// Once with the victim's source, once with its own.
			theirs := r.Header.Get("ce-source")
			for _, source := range []string{theirs, strings.Replace(theirs, "/"+victim+"/", "/"+own+"/", 1)} {
				header := nats.Header{}
				for key, values := range r.Header {
					if !strings.HasPrefix(key, "Nats-") {
						header[key] = slices.Clone(values)
					}
				}
				header.Set("ce-source", source)
				header.Set("ce-id", fmt.Sprintf("forged-%d", count))
				i.publish(&nats.Msg{Subject: prefix + own + "." + rest, Header: header, Data: r.Data})
				count++
			}
		}
	}
	require.Greater(i.t, count, 10)
	// State has read everything when the messages after it are dead letters.
	last := fmt.Sprintf("last-forged-%d", time.Now().UnixNano())
	for _, subject := range []string{
		stack.Cell.Observed(i.own.AgentID, last, "a", "b"), stack.Cell.Applied(i.own.AgentID, last),
	} {
		i.publish(&nats.Msg{Subject: subject, Data: []byte("no event")})
		awaitSubject(i.s, stack.Cell.Dead("state", subject))
	}
}

// awaitSubject waits until a message is stored on the subject.
func awaitSubject(s *fixture.System, subject string) {
	s.T.Helper()
	stream, err := s.JS.Stream(s.T.Context(), topology.StreamDead)
	require.NoError(s.T, err)
	require.Eventually(s.T, func() bool {
		_, err := stream.GetLastMsgForSubject(s.T.Context(), subject)
		return err == nil
	}, fixture.Timeout, fixture.PollInterval, subject)
}

// copied is the data of a valid event and copiedHeader its headers.
func (s *isolationScenario) copied() []byte { return s.Records(topology.FamilyDesired)[0].Data }

func (s *isolationScenario) copiedHeader() nats.Header {
	return s.Records(topology.FamilyDesired)[0].Header
}

func projectOf(s *fixture.System, agent int64) int64 {
	s.T.Helper()
	found, err := s.API.Agents.GetAgent(s.T.Context(), connect.NewRequest(&statev1.GetAgentRequest{Id: agent}))
	require.NoError(s.T, err)
	return found.Msg.GetAgent().GetProjectId()
}

// credentialsOfOthersAreRefused connects in every way except with the right credentials.
func credentialsOfOthersAreRefused(s *isolationScenario) {
	victim, own := strconv.FormatInt(s.victim.AgentID, 10), strconv.FormatInt(s.attacker.AgentID, 10)
	revoked := s.revokedAgent()
	operator, err := nkeys.FromSeed(seed(s.System, natsauth.PrincipalOperator))
	require.NoError(s.T, err)
	public, err := operator.PublicKey()
	require.NoError(s.T, err)
	mine, err := nkeys.CreateUser()
	require.NoError(s.T, err)
	issuer, err := nkeys.CreateAccount()
	require.NoError(s.T, err)
	before := s.evidence()
	for name, option := range map[string]nats.Option{
		"no credentials":                    func(*nats.Options) error { return nil },
		"own token as another agent":        nats.UserInfo(victim, s.attacker.Token),
		"own token as state":                nats.UserInfo(natsauth.PrincipalState, s.attacker.Token),
		"own token with an empty user":      nats.UserInfo("", s.attacker.Token),
		"own token without a user":          nats.Token(s.attacker.Token),
		"own id without a token":            nats.UserInfo(own, ""),
		"another's id without a token":      nats.UserInfo(victim, ""),
		"another's id with its hash's name": nats.UserInfo(victim, "lsa_"+victim),
		"two ids in one":                    nats.UserInfo(own+" "+victim, s.attacker.Token),
		"another's id and a space":          nats.UserInfo(victim+" ", s.attacker.Token),
		"a revoked token":                   nats.UserInfo(strconv.FormatInt(revoked.AgentID, 10), revoked.Token),
		"a revoked token with the own id":   nats.UserInfo(own, revoked.Token),
		"a person's token":                  nats.UserInfo(own, personalToken(s.System)),
		"an operator's public key": nats.Nkey(public, func([]byte) ([]byte, error) {
			return []byte("signature"), nil
		}),
		"an operator's public key with a signature of another key": nats.Nkey(public, mine.Sign),
		"an operator's public key and a token": func(o *nats.Options) error {
			o.User, o.Password = own, s.attacker.Token
			return nats.Nkey(public, mine.Sign)(o)
		},
		"an own key": nats.Nkey(publicOf(s.T, mine), mine.Sign),
		"a user JWT of an own issuer": nats.UserJWT(func() (string, error) {
			return forgedUser(s.T, issuer, mine), nil
		}, mine.Sign),
		"a malformed user JWT":      nats.UserJWT(func() (string, error) { return "a.b.c", nil }, mine.Sign),
		"the user name of a system": nats.UserInfo("$SYS", s.attacker.Token),
	} {
		conn, err := nats.Connect(s.NATS().ClientURL(), option, nats.NoReconnect(), nats.Timeout(fixture.Timeout))
		if err == nil {
			conn.Close()
		}
		require.ErrorIs(s.T, err, nats.ErrAuthorization, name)
	}
	s.sendServerCommands()
	require.Equal(s.T, before, s.evidence())
}

// sendServerCommands sends, on an agent's connection, commands that only servers send each other.
func (s *isolationScenario) sendServerCommands() {
	t := s.T
	t.Helper()
	at, err := url.Parse(s.NATS().ClientURL())
	require.NoError(t, err)
	hello, err := json.Marshal(map[string]any{
		"user":     strconv.FormatInt(s.attacker.AgentID, 10),
		"pass":     s.attacker.Token,
		"verbose":  false,
		"headers":  true,
		"protocol": 1,
		"lang":     "go",
		"version":  "1",
	})
	require.NoError(t, err)
	desired := stack.Cell.Desired(s.victim.AgentID, s.workspaces[0].ID)
	for _, line := range []string{
		"RS+ CONTROL lockstep.>", "LS+ lockstep.>", "RMSG CONTROL " + desired + " 2\r\n{}", "LMSG " + desired + " 2\r\n{}",
		"HMSG CONTROL " + desired + " 12 14\r\nNATS/1.0\r\n\r\n{}",
		"A+ CONTROL", "CONNECT " + `{"user":"state","nkey":"x"}`, "INFO {}", "PUB " + desired + " 2\r\n{}\r\nPING",
		"PUB " + stack.Cell.ObservedResync(s.attacker.AgentID) + " " + desired + " _INBOX 2\r\n{}",
		"PUB\t" + desired + "\t2\r\n{}", "PUB " + desired + "\x00 2\r\n{}",
		"HPUB " + desired + " 99999 2\r\n{}", "PUB " + desired + " 99999999",
	} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at.Host)
		require.NoError(t, err)
		reader := bufio.NewReader(conn)
		_, err = reader.ReadString('\n') // the server's INFO
		require.NoError(t, err)
		_, err = fmt.Fprintf(conn, "CONNECT %s\r\nPING\r\n", hello)
		require.NoError(t, err)
		s.untilLine(reader, "PONG")
		require.NoError(t, conn.SetDeadline(time.Now().Add(fixture.Timeout)))
		_, err = fmt.Fprintf(conn, "%s\r\nPING\r\n", line)
		require.NoError(t, err)
		// The server refuses it, with or without a message, or ignores it.
		_, err = reader.ReadString('\n')
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, line)
		require.NoError(t, conn.Close())
	}
}

// untilLine reads until a line has the prefix.
func (s *isolationScenario) untilLine(reader *bufio.Reader, begins string) {
	s.T.Helper()
	for {
		line, err := reader.ReadString('\n')
		require.NoError(s.T, err, "no %s", begins)
		if strings.HasPrefix(line, begins) {
			return
		}
	}
}

// victimRecovers checks that no message to the victim is lost and that it works as before.
func victimRecovers(s *isolationScenario) {
	victim := stack.WatcherOf(victimName)
	require.NoError(s.T, s.StartService(s.T.Context(), victim))
	require.NoError(s.T, s.StartService(s.T.Context(), stack.DispatcherOf(victimName)))
	theirs := s.workspaces[0].In(s.T)
	theirs.System = s.System
	theirs.AwaitStopped()
	theirs.Start()
	theirs.AwaitRunning()
	bystanders := s.workspaces[1].In(s.T)
	bystanders.Restart()
	bystanders.AwaitRestarted()
	s.Secrets.RequireHidden(s.T, s.System)
}
