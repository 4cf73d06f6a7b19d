package e2e_test

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

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/natstest"
)

// TestIsolation lets an agent with real credentials try everything that could reach another one.
func TestIsolation(t *testing.T) {
	t.Parallel()
	s := startWith(t, stack.Options{Workloads: watcher.Workloads{Enabled: true}, Configure: func(service string, config any) {
		// The victim's agent is in the bystander's cluster, of whose workloads it has nothing to say.
		if cfg, is := config.(*watcher.Config); is && service == stack.Watcher && filepath.Base(cfg.CredentialsFile) == victimName+".json" {
			cfg.Workloads.Enabled = false
		}
	}})
	ours := s.shopDeployment("isolated", 2)
	ours.image(secondImage)
	ours.requireFacts("started 1", "completed 1", "started 2", "completed 2")
	sc := s.scene()
	s.inTurn(
		promise{"the rollouts of a project are shown to nobody else", func(s *system) {
			here := *ours
			here.system = s
			rolloutsAreShownToNobodyElse(sc.in(s.t), &here)
			sc.awaitDrained("isolated", 3)
		}},
		promise{"an intruder changes and hears nothing", func(s *system) { intruderChangesAndHearsNothing(sc.in(s.t)) }},
		promise{"who asks too much takes nobody's place", func(s *system) { whoAsksTooMuchTakesNobodysPlace(sc.in(s.t)) }},
		promise{"nobody comes in as another", func(s *system) { nobodyComesInAsAnother(sc.in(s.t)) }},
		promise{"who is revoked is cut off within a second", revokedIsCutOff},
		promise{"the victim works as if nothing had been", func(s *system) { victimWorksOn(sc.in(s.t)) }},
	)
}

func (s *scene) in(t *testing.T) *scene {
	t.Helper()
	here := *s
	here.system = s.system.in(t)
	return &here
}

// victimName is the name of the victim's agent.
const victimName = "victim"

// awaitDrained returns when so many rollouts of a namespace are over for good: nothing more is told of them.
func (s *system) awaitDrained(namespace string, rollouts int) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		drained := 0
		for _, r := range s.records(topology.FamilyDeploy) {
			if strings.Contains(r.subject, "."+namespace+".") && strings.HasSuffix(r.subject, ".drained") {
				drained++
			}
		}
		return drained == rollouts
	}, patience, clusterTick)
}

// scene prepares a bystander that works, a victim with something in each of its streams, some of it under way, and an intruder.
func (s *system) scene() *scene {
	t := s.t
	t.Helper()
	sc := &scene{system: s, bystander: s.agent, ears: map[string]*ear{}}
	victim, err := s.AddAgent(t.Context(), s.newProject(victimName), victimName, s.Kubeconfig())
	require.NoError(t, err)
	sc.victim, err = natsauth.ReadAgentCredentials(victim.CredentialsFile)
	require.NoError(t, err)
	api, err := s.Client()
	require.NoError(t, err)
	sc.project = s.newProject("intruder")
	sc.intruder, _, err = stack.RegisterAgent(t.Context(), api, sc.project, "intruder")
	require.NoError(t, err)
	for _, credentials := range []natsauth.AgentCredentials{sc.victim, sc.intruder} {
		s.secrets.add(credentials.Token)
		s.secrets.add(credentials.CurveSeed)
	}

	theirs := s.createAs(&statev1.CreateWorkspaceRequest{
		Name: "victims", ProjectId: s.projectOf(victim.ID), AgentId: victim.ID,
		Overrides: &statev1.WorkspaceOverrides{Image: goodImage, SecretEnv: map[string]string{"TOKEN": s.secrets.make()}},
	})
	theirs.untilRunning()
	sc.own = s.createAs(&statev1.CreateWorkspaceRequest{Name: "intruders", ProjectId: sc.project, AgentId: sc.intruder.AgentID, Overrides: &statev1.WorkspaceOverrides{Image: goodImage}})
	sc.workspaces = []*workspace{theirs, s.createRunning("bystanders")}
	require.NoError(t, s.StopService(stack.WatcherOf(victim.Name)))
	require.NoError(t, s.StopService(stack.DispatcherOf(victim.Name)))
	// Something waits for the victim, and something else it has taken and not yet acknowledged.
	theirs.stop()
	sc.awaitTold()
	sc.leaveUnacknowledged()
	sc.awaitQuiet()
	sc.listen()
	return sc
}

// leaveUnacknowledged takes a message as the victim's dispatcher, which then is away.
func (s *scene) leaveUnacknowledged() {
	t := s.t
	t.Helper()
	conn, err := connectAgent(s.victim)
	require.NoError(t, err)
	defer conn.Close()
	consumer, err := natstest.Open(t, conn).Consumer(t.Context(), topology.StreamDesired, topology.DispatcherConsumer(s.victim.AgentID))
	require.NoError(t, err)
	batch, err := consumer.Fetch(1, jetstream.FetchMaxWait(patience))
	require.NoError(t, err)
	require.NotNil(t, <-batch.Messages())
	require.NoError(t, batch.Error())
}

// awaitTold returns when nothing that the state service has decided is still to be told.
func (s *system) awaitTold() {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.Database().URL())
	require.NoError(s.t, err)
	defer conn.Close(s.t.Context())
	awaitCluster(s.t, "everything is told", func(ctx context.Context) (bool, error) {
		var waiting int
		err := conn.QueryRow(ctx, "SELECT count(*) FROM state.outbox").Scan(&waiting)
		return waiting == 0, err
	})
}

// awaitQuiet returns when nothing is left of what the victim's services asked for before they ended.
func (s *scene) awaitQuiet() {
	s.t.Helper()
	awaitCluster(s.t, "requests of the victim's services run out", func(ctx context.Context) (bool, error) {
		for _, made := range topology.AgentConsumers(stack.Cell, s.victim.AgentID) {
			consumer, err := s.js.Consumer(ctx, made.Stream, made.Config.Durable)
			if err != nil || consumer.CachedInfo().NumWaiting > 0 {
				return false, err
			}
		}
		return true, nil
	})
}

// listen hears what comes to inboxes whose names an intruder could guess if they were not random.
func (s *scene) listen() {
	s.t.Helper()
	victim, err := connectAgent(s.victim)
	require.NoError(s.t, err)
	s.t.Cleanup(victim.Close)
	s.ears["the victim's inboxes"] = listen(s.t, victim, natsauth.InboxPrefix(strconv.FormatInt(s.victim.AgentID, 10))+".>")
	for _, name := range []string{natsauth.PrincipalState, natsauth.PrincipalDeploys, natsauth.PrincipalRelay, natsauth.PrincipalOperator, natsauth.PrincipalCallout, natsauth.PrincipalSystem} {
		s.ears["inboxes of "+name] = listen(s.t, s.principal(name), natsauth.InboxPrefix(name)+"."+guessed+".>")
	}
}

func intruderChangesAndHearsNothing(s *scene) {
	i := s.intrude(s.intruder, s.own.id)
	// What the intruder may do is done once before, so that what it leaves behind is not held against it.
	i.settle()
	before := s.evidence()
	require.Greater(s.t, len(before), 30)
	attempts := s.attempts()
	require.Greater(s.t, len(attempts), 80)
	for _, attempt := range attempts {
		s.t.Run(attempt.name, func(t *testing.T) {
			here := i.in(t)
			attempt.do(here)
			here.settle()
			here.hasNothing()
			require.Equal(t, before, s.in(t).evidence())
		})
	}
	// The evidence would show it.
	theirs := s.workspaces[0].in(s.t)
	theirs.start()
	theirs.stop()
	s.awaitTold()
	require.NotEqual(s.t, before, s.evidence())
}

// asksForSecretsOf asks on its own subject for the secrets of others' workspaces, by their real names and digests.
func (i *attacker) asksForSecretsOf(workspaces []*workspace, victim int64) {
	i.t.Helper()
	for _, w := range workspaces {
		for _, digest := range append(i.s.digests(w), "", "x") {
			body, err := json.Marshal(map[string]string{"name": w.name + "-env", "digest": digest})
			require.NoError(i.t, err)
			answer := i.ask(stack.Cell.Secret(i.own.AgentID, w.id), body)
			var reply map[string]json.RawMessage
			require.NoError(i.t, json.Unmarshal(answer.Data, &reply))
			require.Contains(i.t, string(reply["error"]), "not_found", "%s", answer.Data)
			require.Len(i.t, reply, 1)
			i.refused(stack.Cell.Secret(victim, w.id), body, nil)
		}
	}
}

// whoAsksTooMuchTakesNobodysPlace has the victim ask once while the intruder asks without waiting for answers.
func whoAsksTooMuchTakesNobodysPlace(s *scene) {
	i := s.intrude(s.intruder, s.own.id)
	victim, err := connectAgent(s.victim)
	require.NoError(s.t, err)
	defer victim.Close()
	body, err := json.Marshal(map[string]string{"name": s.workspaces[0].name + "-env", "digest": s.digests(s.workspaces[0])[0]})
	require.NoError(s.t, err)
	for range 5000 {
		i.published(&nats.Msg{Subject: stack.Cell.Secret(i.own.AgentID, i.workspace), Reply: i.inbox("answers"), Data: []byte(`{"name":"x","digest":"y"}`)})
	}
	i.flush()
	answer, err := victim.Request(stack.Cell.Secret(s.victim.AgentID, s.workspaces[0].id), body, patience)
	require.NoError(s.t, err, "asked once")
	require.NotContains(s.t, string(answer.Data), "error")
	i.settle()
	i.hasNothing()
}

// digests of a workspace's secrets, as a desired event has them.
func (s *system) digests(w *workspace) []string {
	s.t.Helper()
	var all []string
	for _, r := range s.records(topology.FamilyDesired) {
		var data struct {
			WorkspaceID string `json:"workspace_id"`
			Secrets     []struct {
				Digest string `json:"digest"`
			} `json:"secrets"`
		}
		require.NoError(s.t, json.Unmarshal(r.data, &data))
		for _, secret := range data.Secrets {
			if data.WorkspaceID == w.id {
				all = append(all, secret.Digest)
			}
		}
	}
	return all
}

// lies repeats on its own subjects what the victim's services have said, and has it end where nobody believes it.
func (i *attacker) lies(s *scene) {
	victim, own := strconv.FormatInt(s.victim.AgentID, 10), strconv.FormatInt(i.own.AgentID, 10)
	told := 0
	for _, family := range []string{topology.FamilyObserved, topology.FamilyApplied} {
		prefix := stack.Cell.Prefix(family) + "."
		for _, r := range i.s.records(family) {
			rest, ofVictim := strings.CutPrefix(r.subject, prefix+victim+".")
			if !ofVictim {
				continue
			}
			// As the victim's, and as its own about what is the victim's.
			for _, source := range []string{r.header.Get("ce-source"), strings.Replace(r.header.Get("ce-source"), "/"+victim+"/", "/"+own+"/", 1)} {
				header := nats.Header{}
				for key, values := range r.header {
					if !strings.HasPrefix(key, "Nats-") {
						header[key] = slices.Clone(values)
					}
				}
				header.Set("ce-source", source)
				header.Set("ce-id", fmt.Sprintf("lie-%d", told))
				i.published(&nats.Msg{Subject: prefix + own + "." + rest, Header: header, Data: r.data})
				told++
			}
		}
	}
	require.Greater(i.t, told, 10)
	// State has read all of it when it has put away what comes after.
	last := fmt.Sprintf("last-lie-%d", time.Now().UnixNano())
	for _, subject := range []string{stack.Cell.Observed(i.own.AgentID, last, "a", "b"), stack.Cell.Applied(i.own.AgentID, last)} {
		i.published(&nats.Msg{Subject: subject, Data: []byte("no event")})
		i.s.awaitSubject(stack.Cell.Dead("state", subject))
	}
}

// awaitSubject returns when something is stored on the subject.
func (s *system) awaitSubject(subject string) {
	s.t.Helper()
	stream, err := s.js.Stream(s.t.Context(), topology.StreamDead)
	require.NoError(s.t, err)
	require.Eventually(s.t, func() bool {
		_, err := stream.GetLastMsgForSubject(s.t.Context(), subject)
		return err == nil
	}, patience, clusterTick, subject)
}

// copied is the data of a valid event, and copiedHeader the headers that make it one.
func (s *scene) copied() []byte { return s.records(topology.FamilyDesired)[0].data }

func (s *scene) copiedHeader() nats.Header { return s.records(topology.FamilyDesired)[0].header }

func (s *system) projectOf(agent int64) int64 {
	s.t.Helper()
	found, err := s.api.Agents.GetAgent(s.t.Context(), connect.NewRequest(&statev1.GetAgentRequest{Id: agent}))
	require.NoError(s.t, err)
	return found.Msg.GetAgent().GetProjectId()
}

// nobodyComesInAsAnother connects in every way but with the credentials of who one says one is.
func nobodyComesInAsAnother(s *scene) {
	victim, own := strconv.FormatInt(s.victim.AgentID, 10), strconv.FormatInt(s.intruder.AgentID, 10)
	revoked := s.revokedAgent()
	operator, err := nkeys.FromSeed(s.seed(natsauth.PrincipalOperator))
	require.NoError(s.t, err)
	public, err := operator.PublicKey()
	require.NoError(s.t, err)
	mine, err := nkeys.CreateUser()
	require.NoError(s.t, err)
	issuer, err := nkeys.CreateAccount()
	require.NoError(s.t, err)
	before := s.evidence()
	for name, option := range map[string]nats.Option{
		"nothing":                                func(*nats.Options) error { return nil },
		"one's own token as another":             nats.UserInfo(victim, s.intruder.Token),
		"one's own token as state":               nats.UserInfo(natsauth.PrincipalState, s.intruder.Token),
		"one's own token as nobody":              nats.UserInfo("", s.intruder.Token),
		"one's own token alone":                  nats.Token(s.intruder.Token),
		"one's own id without a token":           nats.UserInfo(own, ""),
		"another's id without a token":           nats.UserInfo(victim, ""),
		"another's id with its hash's name":      nats.UserInfo(victim, "lsa_"+victim),
		"two ids in one":                         nats.UserInfo(own+" "+victim, s.intruder.Token),
		"another's id and a space":               nats.UserInfo(victim+" ", s.intruder.Token),
		"a token that is revoked":                nats.UserInfo(strconv.FormatInt(revoked.AgentID, 10), revoked.Token),
		"a token that is revoked, as oneself":    nats.UserInfo(own, revoked.Token),
		"a person's token":                       nats.UserInfo(own, s.personalToken()),
		"an operator's public key":               nats.Nkey(public, func([]byte) ([]byte, error) { return []byte("signature"), nil }),
		"an operator's public key, signed by me": nats.Nkey(public, mine.Sign),
		"an operator's public key and a token": func(o *nats.Options) error {
			o.User, o.Password = own, s.intruder.Token
			return nats.Nkey(public, mine.Sign)(o)
		},
		"a key of one's own":      nats.Nkey(publicOf(s.t, mine), mine.Sign),
		"a user one has signed":   nats.UserJWT(func() (string, error) { return forgedUser(s.t, issuer, mine), nil }, mine.Sign),
		"a user nobody signed":    nats.UserJWT(func() (string, error) { return "a.b.c", nil }, mine.Sign),
		"a user name of a server": nats.UserInfo("$SYS", s.intruder.Token),
	} {
		conn, err := nats.Connect(s.NATS().ClientURL(), option, nats.NoReconnect(), nats.Timeout(patience))
		if err == nil {
			conn.Close()
		}
		require.ErrorIs(s.t, err, nats.ErrAuthorization, name)
	}
	s.speaksLikeAServer()
	require.Equal(s.t, before, s.evidence())
}

// speaksLikeAServer sends on an agent's connection what only servers say to each other.
func (s *scene) speaksLikeAServer() {
	t := s.t
	t.Helper()
	at, err := url.Parse(s.NATS().ClientURL())
	require.NoError(t, err)
	hello, err := json.Marshal(map[string]any{
		"user": strconv.FormatInt(s.intruder.AgentID, 10), "pass": s.intruder.Token, "verbose": false, "headers": true, "protocol": 1, "lang": "go", "version": "1",
	})
	require.NoError(t, err)
	desired := stack.Cell.Desired(s.victim.AgentID, s.workspaces[0].id)
	for _, line := range []string{
		"RS+ CONTROL lockstep.>", "LS+ lockstep.>", "RMSG CONTROL " + desired + " 2\r\n{}", "LMSG " + desired + " 2\r\n{}", "HMSG CONTROL " + desired + " 12 14\r\nNATS/1.0\r\n\r\n{}",
		"A+ CONTROL", "CONNECT " + `{"user":"state","nkey":"x"}`, "INFO {}", "PUB " + desired + " 2\r\n{}\r\nPING",
		"PUB " + stack.Cell.ObservedResync(s.intruder.AgentID) + " " + desired + " _INBOX 2\r\n{}", "PUB\t" + desired + "\t2\r\n{}", "PUB " + desired + "\x00 2\r\n{}",
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
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		_, err = fmt.Fprintf(conn, "%s\r\nPING\r\n", line)
		require.NoError(t, err)
		// It is refused, with a word or without, or has meant nothing.
		_, err = reader.ReadString('\n')
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, line)
		require.NoError(t, conn.Close())
	}
}

// untilLine reads until a line begins so.
func (s *scene) untilLine(reader *bufio.Reader, begins string) {
	s.t.Helper()
	for {
		line, err := reader.ReadString('\n')
		require.NoError(s.t, err, "no %s", begins)
		if strings.HasPrefix(line, begins) {
			return
		}
	}
}

// victimWorksOn is that nothing that was sent to the victim is lost, and that nothing that was done before hinders it.
func victimWorksOn(s *scene) {
	victim := stack.WatcherOf(victimName)
	require.NoError(s.t, s.StartService(s.t.Context(), victim))
	require.NoError(s.t, s.StartService(s.t.Context(), stack.DispatcherOf(victimName)))
	theirs := s.workspaces[0].in(s.t)
	theirs.s = s.system
	theirs.untilStopped()
	theirs.start()
	theirs.untilRunning()
	bystanders := s.workspaces[1].in(s.t)
	bystanders.restart()
	bystanders.untilRestarted()
	s.secrets.requireKept(s.t, s.system)
}
