package api_test

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/api"
	"lockstep.internal/services/runners/gitlab"
)

// get requests a path with headers in pairs. The body is closed at the end of the test.
func (f *fixture) get(authorization, path string, headers ...string) *http.Response {
	f.t.Helper()
	request, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, f.url+path, http.NoBody)
	require.NoError(f.t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := f.client(authorization).Do(request)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { require.NoError(f.t, response.Body.Close()) })
	return response
}

func (f *fixture) user(id int64) string { return "Bearer " + f.token(id, access.ScopeRead) }

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	content, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return string(content)
}

func TestTraceIsText(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.create("a: {script: x}").GetJobs()[0].GetId()
	f.traces[id] = strings.Repeat("0123456789", 60_000) // more than one part
	path := "/api/v4/jobs/" + strconv.FormatInt(id, 10) + "/trace"
	whole := f.get(f.user(reader), path)
	require.Equal(t, http.StatusOK, whole.StatusCode)
	require.Equal(t, "text/plain; charset=utf-8", whole.Header.Get("Content-Type"))
	require.Equal(t, "nosniff", whole.Header.Get("X-Content-Type-Options"))
	require.Equal(t, f.traces[id], body(t, whole))
	part := f.get(f.user(reader), path, "Range", "bytes=300005-300008")
	require.Equal(t, http.StatusPartialContent, part.StatusCode)
	require.Equal(t, "5678", body(t, part))
	require.Equal(t, "89", body(t, f.get(f.user(reader), path, "Range", "bytes=-2")))
	beyond := f.get(f.user(reader), path, "Range", "bytes=600000-")
	require.Equal(t, http.StatusRequestedRangeNotSatisfiable, beyond.StatusCode)
	for _, invalid := range []string{"/api/v4/jobs/x/trace", "/api/v4/jobs/-1/trace"} {
		require.Equal(t, errcode.InvalidArgument, fault.CodeOf(fault.FromHTTP(f.get(f.user(reader), invalid))))
	}
	require.Equal(t, errcode.NotFound, fault.CodeOf(fault.FromHTTP(f.get(f.user(stranger), path))))
	require.Equal(t, errcode.NotFound, fault.CodeOf(fault.FromHTTP(f.get(f.user(reader), "/api/v4/jobs/99/trace"))))
}

func TestTraceIsFollowedByEvents(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.create("a: {script: x}")
	f.exec(`UPDATE jobs SET id = 1`)
	const accept = "text/html;q=0.5, text/event-stream"
	stream := f.get(f.user(reader), "/api/v4/jobs/1/trace", "Accept", accept)
	require.Equal(t, "text/event-stream", stream.Header.Get("Content-Type"))
	require.Equal(t, "event: end\n\n", body(t, stream))
	refused := f.get(f.user(stranger), "/api/v4/jobs/1/trace", "Accept", accept)
	require.Equal(t, errcode.NotFound, fault.CodeOf(fault.FromHTTP(refused)))
}

func TestArchiveIsDownloaded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	made := f.create("a: {script: x}\nb: {script: x}\nc: {script: x}")
	path := func(project, i int) string {
		id := strconv.FormatInt(made.GetJobs()[i].GetId(), 10)
		return "/api/v4/projects/" + strconv.Itoa(project) + "/jobs/" + id + "/artifacts"
	}
	f.archives[made.GetJobs()[0].GetId()] = gitlab.Download{Filename: "a\"\nb.zip", Size: 7}
	f.archives[made.GetJobs()[1].GetId()] = gitlab.Download{Location: "https://objects.example/x?signature=1"}
	got := f.get(f.user(reader), path(projectID, 0))
	require.Equal(t, http.StatusOK, got.StatusCode)
	require.Equal(t, "content", body(t, got))
	require.EqualValues(t, 7, got.ContentLength)
	require.Contains(t, got.Header.Get("Content-Disposition"), "attachment")
	elsewhere := f.get(f.user(reader), path(projectID, 1))
	require.Equal(t, http.StatusFound, elsewhere.StatusCode)
	require.Equal(t, "https://objects.example/x?signature=1", elsewhere.Header.Get("Location"))
	for name, response := range map[string]*http.Response{
		"no archive":      f.get(f.user(reader), path(projectID, 2)),
		"another project": f.get(f.user(reader), path(otherProject, 0)),
		"no role":         f.get(f.user(stranger), path(projectID, 0)),
	} {
		require.Equal(t, errcode.NotFound, fault.CodeOf(fault.FromHTTP(response)), name)
	}
}

// TestDocumentHasTheServedPaths compares the patterns with schemas/openapi/job-files.yaml.
func TestDocumentHasTheServedPaths(t *testing.T) {
	t.Parallel()
	document, err := openapi3.NewLoader().LoadFromFile("../../../schemas/openapi/job-files.yaml")
	require.NoError(t, err)
	var documented, served []string
	for path, item := range document.Paths.Map() {
		for method := range item.Operations() {
			documented = append(documented, method+" /api/v4"+path)
		}
	}
	for _, pattern := range api.Patterns() {
		if strings.Contains(pattern, "/api/v4/") {
			served = append(served, pattern)
		}
	}
	require.ElementsMatch(t, documented, served)
}
