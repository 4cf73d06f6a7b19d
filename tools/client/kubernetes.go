package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// Kubernetes gets a path of the Kubernetes API of an agent's cluster. The caller closes the body.
func (r *Relay) Kubernetes(ctx context.Context, agent int64, path string, query url.Values) (io.ReadCloser, error) {
	token, err := r.access.token(ctx, RelayAudience, "")
	if err != nil {
		return nil, err
	}
	address := r.url + "/agents/" + strconv.FormatInt(agent, 10) + "/kubernetes" + path + "?" + query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, fmt.Errorf("create a request: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := r.http.Do(request)
	if err != nil {
		return nil, fault.Wrap(err, errcode.Unavailable, "the relay %s cannot be reached: %v", r.url, err)
	}
	if response.StatusCode == http.StatusOK {
		return response.Body, nil
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxGatewayAnswer))
	if err != nil {
		return nil, fault.Wrap(err, errcode.Unavailable, "lost the connection to the relay %s: %v", r.url, err)
	}
	return nil, kubernetesFault(response.StatusCode, raw)
}

// kubernetesFault returns the fault of an answer of the API server, or of the relay.
func kubernetesFault(status int, body []byte) error {
	code := errcode.Internal
	switch status {
	case http.StatusBadRequest:
		code = errcode.FailedPrecondition // the container is waiting
	case http.StatusUnauthorized:
		code = errcode.Unauthenticated
	case http.StatusForbidden:
		code = errcode.PermissionDenied
	case http.StatusNotFound:
		code = errcode.NotFound
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		code = errcode.Unavailable
	}
	var answer struct {
		Message string `json:"message"`
	}
	message := strings.TrimSpace(string(body[:min(len(body), 300)]))
	if json.Unmarshal(body, &answer) == nil && answer.Message != "" {
		message = answer.Message
	}
	return fault.New(code, "the cluster answered %d: %s", status, message)
}
