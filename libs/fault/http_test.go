package fault_test

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

func TestHandlerOverARealServer(t *testing.T) {
	t.Parallel()
	faults := map[string]error{
		"/fault":   fault.New(errcode.WorkspaceTerminated, "gone for good").With("workspace", "ws"),
		"/unknown": errors.New("sesame"),
	}
	handler := fault.Handler(slog.New(slog.DiscardHandler), func(w http.ResponseWriter, r *http.Request) error {
		if err := faults[r.URL.Path]; err != nil {
			w.Header().Set("ETag", `"of the thing, not of the fault"`)
			return err
		}
		_, err := io.WriteString(w, "fine")
		return err
	})
	server := httptest.NewServer(handler)
	defer server.Close()
	do := func(method, path string) (*http.Response, string, error) {
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, http.NoBody)
		require.NoError(t, err)
		response, err := server.Client().Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		raw, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		response.Body = io.NopCloser(strings.NewReader(string(raw)))
		return response, string(raw), fault.FromHTTP(response)
	}

	_, body, err := do(http.MethodGet, "/fine")
	require.NoError(t, err)
	require.Equal(t, "fine", body)

	response, body, err := do(http.MethodGet, "/fault")
	require.Equal(t, http.StatusConflict, response.StatusCode)
	require.Equal(t, "application/json", response.Header.Get("Content-Type"))
	require.Empty(t, response.Header.Get("ETag"))
	require.JSONEq(t, `{"code":"workspace_terminated","message":"gone for good","details":{"workspace":"ws"}}`, body)
	require.Equal(t, faults["/fault"], err)

	response, body, err = do(http.MethodGet, "/unknown")
	require.Equal(t, http.StatusInternalServerError, response.StatusCode)
	require.NotContains(t, body, "sesame")
	require.Equal(t, errcode.Internal, fault.CodeOf(err))

	response, body, err = do(http.MethodHead, "/fault")
	require.Equal(t, http.StatusConflict, response.StatusCode)
	require.Empty(t, body)
	require.Equal(t, errcode.Conflict, fault.CodeOf(err), "without a body the status decides")
}

func TestFromHTTPAcceptsForeignResponses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status int
		body   string
		code   fault.Code
	}{
		{200, `{"code":"not_found"}`, ""},
		{399, ``, ""},
		{400, `<html>`, errcode.InvalidArgument},
		{401, ``, errcode.Unauthenticated},
		{403, `{}`, errcode.PermissionDenied},
		{404, `{"code":"nonsense","message":"x"}`, errcode.NotFound},
		{408, ``, errcode.DeadlineExceeded},
		{409, ``, errcode.Conflict},
		{410, ``, errcode.NotFound},
		{412, ``, errcode.FailedPrecondition},
		{413, ``, errcode.PayloadTooLarge},
		{418, ``, errcode.InvalidArgument},
		{429, ``, errcode.ResourceExhausted},
		{499, ``, errcode.Canceled},
		{500, `{"code":"quota_exceeded","message":"x"}`, errcode.QuotaExceeded},
		{500, `[1]`, errcode.Internal},
		{501, ``, errcode.Unimplemented},
		{502, `bad gateway`, errcode.Unavailable},
		{503, strings.Repeat("x", 1<<20), errcode.Unavailable},
		{504, ``, errcode.DeadlineExceeded},
		{599, ``, errcode.Internal},
	} {
		response := &http.Response{StatusCode: tc.status, Body: io.NopCloser(strings.NewReader(tc.body))}
		require.Equal(t, tc.code, fault.CodeOf(fault.FromHTTP(response)), "%d %.20s", tc.status, tc.body)
	}
}

func TestWriteHTTPUsesTheRegistry(t *testing.T) {
	t.Parallel()
	for _, entry := range errcode.All() {
		recorder := httptest.NewRecorder()
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		fault.WriteHTTP(recorder, request, slog.New(slog.DiscardHandler), fault.New(entry.Code, "x"))
		require.Equal(t, entry.HTTP, recorder.Code)
		require.Equal(t, entry.Code, fault.CodeOf(fault.FromHTTP(recorder.Result())))
	}
}

func TestWriteHTTPStatusKeepsTheBodyAndInternalFaults(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		want int
		code string
	}{
		{fault.New(errcode.FailedPrecondition, "x"), http.StatusPreconditionFailed, "failed_precondition"},
		{errors.New("sesame"), http.StatusInternalServerError, "internal"},
	} {
		recorder := httptest.NewRecorder()
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		fault.WriteHTTPStatus(recorder, request, slog.New(slog.DiscardHandler), http.StatusPreconditionFailed, test.err)
		require.Equal(t, test.want, recorder.Code)
		require.Contains(t, recorder.Body.String(), `{"code":"`+test.code+`"`)
		require.NotContains(t, recorder.Body.String(), "sesame")
	}
}
