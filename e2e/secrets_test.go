package e2e_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/libs/topology"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// secrets are values to look for where they must not be.
type secrets struct {
	mu     sync.Mutex
	values []string
}

// add notes a value.
func (s *secrets) add(value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values = append(s.values, value)
}

// make makes up a value and notes it.
func (s *secrets) make() string {
	value := "secret-value-" + uuid.NewString()
	s.add(value)
	return value
}

// findIn returns what is found of the values, as they are or in the usual disguises.
func (s *secrets) findIn(content []byte) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []string
	for _, value := range s.values {
		if slices.ContainsFunc(disguises(value), func(looks string) bool { return bytes.Contains(content, []byte(looks)) }) {
			found = append(found, value)
		}
	}
	return found
}

// disguises of a value: base64 also of what it is in the middle of.
func disguises(value string) []string {
	looks := []string{value, hex.EncodeToString([]byte(value)), strings.ToUpper(hex.EncodeToString([]byte(value))), url.QueryEscape(value)}
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 {
			// Characters at both ends have bits of what is beside the value.
			whole := []byte(strings.Repeat("x", before) + value)
			encoded := encoding.EncodeToString(whole[:len(whole)/3*3])
			looks = append(looks, encoded[(before+2)/3*4:])
		}
	}
	return looks
}

func TestSecretsAreFoundInDisguise(t *testing.T) {
	t.Parallel()
	s := &secrets{}
	value := s.make()
	for name, content := range map[string][]byte{
		"as it is": []byte("x" + value + "x"), "hex": []byte(hex.EncodeToString([]byte("x" + value))), "url": []byte("/?v=" + url.QueryEscape("a b"+value)),
		"base64": []byte(base64.StdEncoding.EncodeToString([]byte(value))), "base64 within": []byte(base64.URLEncoding.EncodeToString([]byte(`{"value":"` + value + `"}`))),
		"base64 one off": []byte(base64.StdEncoding.EncodeToString([]byte("x" + value + "xx"))), "base64 two off": []byte(base64.StdEncoding.EncodeToString([]byte("xx" + value + "x"))),
	} {
		require.Equal(t, []string{value}, s.findIn(content), name)
	}
	require.Empty(t, s.findIn([]byte("secret-value-"+uuid.NewString())))
}

// requireKept looks for the values in every stream, also in what its store has kept of messages that are gone, in every column of every table, in the
// services' log, in the traces of all of them, and in what the API tells of every workspace.
func (s *secrets) requireKept(t *testing.T, running *system) {
	t.Helper()
	s.requireKeptOnStreams(t, running)
	s.requireKeptInTables(t, running)
	s.requireKeptByAPI(t, running)
	running.traces.awaitAll(t)
	require.Empty(t, s.findIn(running.traces.all()), "traces")
}

// requireKeptOnStreams looks at what is on the streams, in their files and in the services' log.
func (s *secrets) requireKeptOnStreams(t *testing.T, running *system) {
	t.Helper()
	for _, stream := range topology.Streams() {
		for _, r := range running.records(stream.Family) {
			require.Empty(t, s.findIn(fmt.Append(nil, r.subject, r.header)), "header of %s, sequence %d", stream.Name, r.sequence)
			require.Empty(t, s.findIn(r.data), "data of %s, sequence %d", stream.Name, r.sequence)
		}
	}
	s.requireKeptInFiles(t, running.NATS().StoreDir())
	log, err := os.ReadFile(running.LogFile())
	require.NoError(t, err)
	require.NotEmpty(t, log)
	require.Empty(t, s.findIn(log), "the services' log")
}

func (s *secrets) requireKeptInFiles(t *testing.T, dir string) {
	t.Helper()
	files := 0
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil // gone meanwhile
		}
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		files++
		require.Empty(t, s.findIn(content), path)
		return err
	}))
	require.Greater(t, files, len(topology.Streams()))
}

// requireKeptByAPI reads all that people are told of workspaces, and their histories.
func (s *secrets) requireKeptByAPI(t *testing.T, running *system) {
	t.Helper()
	filter := &statev1.WorkspaceFilter{IncludeTerminated: true}
	listed, err := running.api.Workspaces.ListWorkspaces(t.Context(), connect.NewRequest(&statev1.ListWorkspacesRequest{Filter: filter, PageSize: 500}))
	require.NoError(t, err)
	require.NotEmpty(t, listed.Msg.GetWorkspaces())
	for _, w := range listed.Msg.GetWorkspaces() {
		require.Empty(t, s.findIn([]byte(protojson.Format(w))), "workspace %s", w.GetName())
		told, err := running.api.Workspaces.ListWorkspaceEvents(t.Context(), connect.NewRequest(&statev1.ListWorkspaceEventsRequest{
			Workspace: &statev1.WorkspaceReference{Reference: &statev1.WorkspaceReference_Id{Id: w.GetId()}}, PageSize: 1000,
		}))
		require.NoError(t, err)
		require.Empty(t, s.findIn([]byte(protojson.Format(told.Msg))), "events of workspace %s", w.GetName())
	}
}

// requireKeptInTables reads every column of every table: as text, and bytes as they are.
func (s *secrets) requireKeptInTables(t *testing.T, running *system) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), running.Database().URL())
	require.NoError(t, err)
	defer conn.Close(t.Context())
	type column struct {
		table pgx.Identifier
		name  string
		bytes bool
	}
	rows, err := conn.Query(t.Context(), `SELECT table_schema, table_name, column_name, data_type = 'bytea' FROM information_schema.columns
		JOIN information_schema.tables USING (table_schema, table_name)
		WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('pg_catalog', 'information_schema')`)
	require.NoError(t, err)
	columns, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (column, error) {
		c := column{table: make(pgx.Identifier, 2)}
		return c, row.Scan(&c.table[0], &c.table[1], &c.name, &c.bytes)
	})
	require.NoError(t, err)
	require.Greater(t, len(columns), 50)
	full, sealed := 0, 0
	for _, c := range columns {
		name := pgx.Identifier{c.name}.Sanitize()
		shown := "convert_to(" + name + "::text, 'UTF8')"
		if c.bytes {
			shown = name
			sealed++
		}
		rows, err := conn.Query(t.Context(), "SELECT "+shown+" FROM "+c.table.Sanitize()+" WHERE "+name+" IS NOT NULL")
		require.NoError(t, err)
		content, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		require.NoError(t, err)
		full += min(len(content), 1)
		require.Empty(t, s.findIn(bytes.Join(content, []byte("\n"))), "column %s of table %s", name, c.table.Sanitize())
	}
	require.Greater(t, full, 30, "columns with something in them")
	require.Positive(t, sealed, "columns of bytes")
}

// secretsReachTheClusterOnly leaves values behind for requireSoundHistory to look for.
func secretsReachTheClusterOnly(s *system) {
	t := s.t
	variable, file := s.secrets.make(), s.secrets.make()
	w := s.createAs(&statev1.CreateWorkspaceRequest{Name: "secretive", Overrides: &statev1.WorkspaceOverrides{
		Image: goodImage, SecretEnv: map[string]string{"TOKEN": variable}, SecretFiles: map[string][]byte{"ssh/id": []byte(file)},
	}})
	shown := w.untilRunning()
	require.Equal(t, []string{"TOKEN"}, shown.GetSpec().GetSecretEnv())
	require.Equal(t, []string{"ssh/id"}, shown.GetSpec().GetSecretFiles())
	require.Equal(t, []string{variable}, w.secretValues("-env"))
	require.Equal(t, []string{file}, w.secretValues("-files"))
	before := w.podUID()

	changed := s.secrets.make()
	w.update(&statev1.WorkspaceOverrides{SecretEnv: map[string]string{"TOKEN": changed}})
	w.until("Running with the new value", func(now *statev1.Workspace) bool {
		return settled(statev1.ActualState_ACTUAL_STATE_RUNNING)(now) && now.GetDesiredRevision() > shown.GetDesiredRevision()
	})
	require.Equal(t, []string{changed}, w.secretValues("-env"))
	w.awaitPodOtherThan(before)
}

func (w *workspace) secretValues(suffix string) []string {
	w.t.Helper()
	held, err := w.s.kube.CoreV1().Secrets(w.namespace).Get(w.t.Context(), w.name+suffix, metav1.GetOptions{})
	require.NoError(w.t, err)
	values := make([]string, 0, len(held.Data))
	for _, value := range held.Data {
		values = append(values, string(value))
	}
	return values
}
