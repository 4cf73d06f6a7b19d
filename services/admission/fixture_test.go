package admission_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/consumers"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsauth/natsadmin"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	"lockstep.internal/schemas/gen/lockstep/admission/v1/admissionv1connect"
	"lockstep.internal/services/admission"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

const (
	cell = topology.Cell("local")
	soon = 20 * time.Second

	// People and places of the directory.
	administrator, owner, maintainer, reader, stranger = 5, 6, 7, 8, 9
	organizationID, outerGroup, innerGroup             = 1, 2, 3
	projectID, otherProject                            = 4, 10
	windowsRunner, linuxRunner                         = 31, 32
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// fixture is a NATS server with the permissions of production, the streams of state, and a database.
type fixture struct {
	t       *testing.T
	keys    string
	server  *natsd.Server
	state   jetstream.JetStream
	runners jetstream.JetStream
	private ed25519.PrivateKey
	cfg     admission.Config
	events  atomic.Int64
	asked   *webServer // of later
	api     string
	ops     string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, keys: t.TempDir()}
	report, err := natsauth.Init(f.keys, natsauth.Options{Principals: []natsauth.StaticPrincipal{natsadmin.Principal()}})
	require.NoError(t, err)
	f.server = natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile, StoreDir: filepath.Join(f.keys, "store")})
	f.state, f.runners = f.as(natsauth.PrincipalState), f.as(natsauth.PrincipalRunners)
	require.NoError(t, topology.Ensure(natstest.Context(t), f.state, cell, topology.Options{StorageBytes: 1 << 30}))
	f.createConsumers()
	f.directory()
	for id, tags := range map[int][]string{windowsRunner: {"docker", "windows"}, linuxRunner: {"docker", "linux"}} {
		f.runner(events.RunnerChanged{
			RunnerID: id, Revision: 1, Type: events.RunnerTypeInstanceType, Tags: tags, RunUntagged: true,
			Description: "runner " + strconv.Itoa(id),
		})
	}
	f.cfg = f.config()
	return f
}

func (f *fixture) as(principal string) jetstream.JetStream {
	f.t.Helper()
	key, err := natsgo.NkeyOptionFromSeed(natsauth.SeedFile(f.keys, principal))
	require.NoError(f.t, err)
	return natstest.JetStream(f.t, f.server, key, natsgo.CustomInboxPrefix(natsauth.InboxPrefix(principal)))
}

// admin may delete streams.
func (f *fixture) admin() jetstream.JetStream {
	f.t.Helper()
	return natstest.JetStream(f.t, f.server, natsadmin.Key(f.t, f.keys))
}

// createConsumers creates the consumers that the service requests, as the service state does.
func (f *fixture) createConsumers() {
	f.t.Helper()
	responder := &consumers.Responder{
		Direct: consumers.Direct{JetStream: f.state, Cell: cell, Service: natsauth.PrincipalState},
		Logger: slog.New(slog.NewTextHandler(f.t.Output(), nil)),
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- responder.Run(ctx, func() { close(ready) }) }()
	f.t.Cleanup(func() {
		cancel()
		require.NoError(f.t, <-ended)
	})
	<-ready
}

func (f *fixture) config() admission.Config {
	f.t.Helper()
	cfg := admission.DefaultConfig()
	cfg.Ops.Listen, cfg.API.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Telemetry.Out = f.t.Output()
	cfg.Database.URL = config.URL(pgtest.Database(f.t))
	cfg.NATS.URL = config.URL(f.server.ClientURL())
	cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(f.keys, natsauth.PrincipalAdmission))
	key, err := seal.GenerateKey()
	require.NoError(f.t, err)
	seed, err := key.Seed()
	require.NoError(f.t, err)
	keyFile := filepath.Join(f.t.TempDir(), "secrets.seed")
	require.NoError(f.t, os.WriteFile(keyFile, []byte(seed.Reveal()), 0o600))
	cfg.Secrets.KeyFile = config.SecretFile(keyFile)
	cfg.Controllers.AllowPrivate = true
	require.Empty(f.t, cfg.Validate())
	return cfg
}

// start runs the service until stop is called or the test ends. Controllers reach the first replica at its address.
func (f *fixture) start() (stop func()) {
	f.t.Helper()
	front := newFront(f.t)
	cfg := f.cfg
	cfg.Cell.PublicURL = front.server.URL
	ready := make(chan map[string]string, 1)
	cfg.OnReady = func(addresses map[string]string) { ready <- addresses }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- admission.Main(ctx, cfg) }()
	stopped := sync.OnceFunc(func() {
		cancel()
		require.NoError(f.t, <-ended)
	})
	f.t.Cleanup(stopped)
	select {
	case addresses := <-ready:
		f.api, f.ops = "http://"+addresses["api"], "http://"+addresses["ops"]
		front.set(f.api)
	case err := <-ended:
		ended <- err
		require.FailNow(f.t, "the service ended", "%v", err)
	case <-time.After(2 * soon):
		require.FailNow(f.t, "the service is not ready")
	}
	return stopped
}

// front is the address of the service for controllers, which is known before the service listens.
type front struct {
	server *httptest.Server
	target atomic.Pointer[string]
}

func newFront(t *testing.T) *front {
	t.Helper()
	f := &front{}
	transport := &http.Transport{}
	f.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		target := *f.target.Load() + r.URL.Path
		forwarded, err := http.NewRequestWithContext(r.Context(), r.Method, target, r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		forwarded.Header = r.Header
		response, err := transport.RoundTrip(forwarded)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer response.Body.Close()
		w.WriteHeader(response.StatusCode)
		_, _ = io.Copy(w, response.Body)
	}))
	t.Cleanup(func() {
		f.server.Close()
		transport.CloseIdleConnections()
	})
	return f
}

func (f *front) set(target string) { f.target.Store(&target) }

func (f *fixture) publish(js jetstream.JetStream, subject, kind, service string, data any) {
	f.t.Helper()
	id := f.events.Add(1)
	e, err := event.New(event.Attributes{
		Type: kind, Source: event.ServiceSource(string(cell), service), Subject: "s", ID: strconv.FormatInt(id, 10),
		Time: time.Now(),
	}, data)
	require.NoError(f.t, err)
	m, err := event.Encode(e, subject)
	require.NoError(f.t, err)
	_, err = js.PublishMsg(f.t.Context(), m)
	require.NoError(f.t, err)
}

// directory publishes people, places and a key.
func (f *fixture) directory() {
	f.t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(f.t, err)
	f.private = private
	now := time.Now().UTC()
	add := func(kind, id, typ string, data any) {
		f.publish(f.state, cell.Directory(kind, id), typ, "state", data)
	}
	add("key", "k", events.TypeDirectoryKey, events.DirectoryKey{
		KeyID: "k", Algorithm: events.KeyAlgorithmEdDSA, PublicKey: base64.RawURLEncoding.EncodeToString(public),
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
	})
	for _, id := range []int{administrator, owner, maintainer, reader, stranger} {
		add("user", strconv.Itoa(id), events.TypeDirectoryUser, events.DirectoryUser{
			UserID: id, Admin: id == administrator, State: events.UserStateActive,
		})
	}
	add("organization", "1", events.TypeDirectoryOrganization,
		events.DirectoryOrganization{OrganizationID: organizationID})
	add("group", "2", events.TypeDirectoryGroup,
		events.DirectoryGroup{GroupID: outerGroup, OrganizationID: organizationID})
	add("group", "3", events.TypeDirectoryGroup, events.DirectoryGroup{
		GroupID: innerGroup, ParentGroupID: outerGroup, OrganizationID: organizationID,
	})
	for _, id := range []int{projectID, otherProject} {
		add("project", strconv.Itoa(id), events.TypeDirectoryProject, events.DirectoryProject{
			ProjectID: id, OrganizationID: organizationID, GroupID: innerGroup,
		})
	}
	for user, role := range map[int]events.MembershipRole{
		maintainer: events.MembershipRoleMaintainer, reader: events.MembershipRoleReader,
	} {
		add("membership", fmt.Sprintf("%d-project-%d", user, projectID), events.TypeDirectoryMembership,
			events.DirectoryMembership{UserID: user, Scope: events.MembershipScopeProject, ScopeID: projectID, Role: role})
	}
	add("membership", fmt.Sprintf("%d-group-%d", owner, innerGroup), events.TypeDirectoryMembership,
		events.DirectoryMembership{
			UserID: owner, Scope: events.MembershipScopeGroup, ScopeID: innerGroup, Role: events.MembershipRoleOwner,
		})
}

func (f *fixture) runner(r events.RunnerChanged) {
	f.t.Helper()
	f.publish(f.runners, cell.Runner(int64(r.RunnerID)), events.TypeRunnerChanged, "runners", r)
}

// prepared is a job that begins to wait for admission.
func prepared(id int, tags ...string) events.JobPreparing {
	now := time.Now().UTC()
	return events.JobPreparing{
		Job: events.Job{
			JobID: id, PipelineID: 801, ProjectID: projectID, OrganizationID: organizationID, Name: "test", Stage: "test",
			Tags: tags, State: events.JobStatePreparing, Revision: 2, Attempt: 1, TimeoutS: 3600, CreatedAt: now,
			PreparingSince: &now,
		},
		Preparation: 1, UserID: reader, Ref: "main", Source: "api", Deadline: now.Add(time.Hour),
		Variables: map[string]string{
			"CI_PROJECT_ID": strconv.Itoa(projectID), "CI_PROJECT_PATH": "acme/shop/web", "CI_PROJECT_NAMESPACE": "acme/shop",
			"GITLAB_USER_ID": strconv.Itoa(reader), "GITLAB_USER_LOGIN": "ada", "CI_JOB_NAME": "test",
		},
	}
}

func (f *fixture) prepare(p events.JobPreparing) {
	f.t.Helper()
	f.publish(f.runners, cell.Job(int64(p.Job.ProjectID), int64(p.Job.JobID), "preparing"), events.TypeJobPreparing,
		"runners", p)
}

// decided waits for the decision about a job of [projectID].
func (f *fixture) decided(jobID int) events.AdmissionDecided {
	f.t.Helper()
	var out events.AdmissionDecided
	require.Eventually(f.t, func() bool { return f.decision(jobID, &out) }, soon, 10*time.Millisecond, "job %d", jobID)
	return out
}

func (f *fixture) decision(jobID int, into *events.AdmissionDecided) bool {
	stream, err := f.state.Stream(f.t.Context(), topology.StreamAdmission)
	require.NoError(f.t, err)
	m, err := stream.GetLastMsgForSubject(f.t.Context(), cell.Admission(projectID, int64(jobID), "decided"))
	if err != nil {
		require.ErrorIs(f.t, err, jetstream.ErrMsgNotFound)
		return false
	}
	require.NoError(f.t, json.Unmarshal(m.Data, into))
	return true
}

func (f *fixture) token(userID int64) string {
	f.t.Helper()
	now := time.Now()
	token, err := access.Sign(f.private, "k", access.Grant{
		Issuer: access.Issuer(cell), Audience: []string{"admission"}, UserID: userID, Admin: userID == administrator,
		Scope: access.ScopeAdmin, IssuedAt: now, ExpiresAt: now.Add(access.TokenLifetime),
	})
	require.NoError(f.t, err)
	return token
}

// client has the API as one user sees it.
type client struct {
	admissionv1connect.ControllerServiceClient
	admissionv1connect.DecisionServiceClient
}

func (f *fixture) user(userID int64) client {
	f.t.Helper()
	transport := &http.Transport{}
	f.t.Cleanup(transport.CloseIdleConnections)
	token := f.token(userID)
	options := connect.WithInterceptors(fault.NewInterceptor(slog.New(slog.DiscardHandler)),
		connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
			return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
				r.Header().Set("Authorization", "Bearer "+token)
				return next(ctx, r)
			}
		}))
	httpClient := &http.Client{Transport: transport}
	return client{
		admissionv1connect.NewControllerServiceClient(httpClient, f.api, options),
		admissionv1connect.NewDecisionServiceClient(httpClient, f.api, options),
	}
}

const (
	project  = admissionv1.ControllerLevel_CONTROLLER_LEVEL_PROJECT
	group    = admissionv1.ControllerLevel_CONTROLLER_LEVEL_GROUP
	instance = admissionv1.ControllerLevel_CONTROLLER_LEVEL_INSTANCE
)

// create creates a controller as the administrator.
func (f *fixture) create(
	level admissionv1.ControllerLevel, ownerID int64, settings *admissionv1.ControllerSettings,
) *admissionv1.CreateControllerResponse {
	f.t.Helper()
	created, err := f.user(administrator).CreateController(f.t.Context(),
		connect.NewRequest(&admissionv1.CreateControllerRequest{Level: level, OwnerId: ownerID, Settings: settings}))
	require.NoError(f.t, err)
	return created.Msg
}

// webServer is a controller with a web server. It records the requests.
type webServer struct {
	server *httptest.Server

	mu       sync.Mutex
	requests []received
	answer   func(w http.ResponseWriter, r received)
}

// received is a request that a controller received.
type received struct {
	header http.Header
	body   string
	job    int
	tags   []string
	// gone is closed when the service waits no longer.
	gone <-chan struct{}
	// number of the request, from 1.
	number int
}

func newWebServer(t *testing.T, answer func(w http.ResponseWriter, r received)) *webServer {
	t.Helper()
	s := &webServer{answer: answer}
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		var jobs []struct {
			ID   int      `json:"id"`
			Tags []string `json:"tags"`
		}
		if json.Unmarshal(body, &jobs) != nil || len(jobs) != 1 {
			http.Error(w, "not an array of one job", http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		got := received{
			header: r.Header, body: string(body), job: jobs[0].ID, tags: jobs[0].Tags, number: len(s.requests) + 1,
			gone: r.Context().Done(),
		}
		s.requests = append(s.requests, got)
		answer := s.answer
		s.mu.Unlock()
		answer(w, got)
	}))
	t.Cleanup(s.server.Close)
	return s
}

func (s *webServer) received() []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]received(nil), s.requests...)
}

func (s *webServer) settings(name string) *admissionv1.ControllerSettings {
	return &admissionv1.ControllerSettings{
		Name: name, Mutating: true, Webhook: &admissionv1.Webhook{Url: s.server.URL},
	}
}

// answering writes a JSON document as the answer.
func answering(format string) func(w http.ResponseWriter, r received) {
	return func(w http.ResponseWriter, r received) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, strings.ReplaceAll(format, "JOB", strconv.Itoa(r.job)))
	}
}

const accept = `[{"id": JOB, "admission": "accepted"}]`
