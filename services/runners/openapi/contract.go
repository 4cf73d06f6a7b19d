// Package openapi checks requests and answers against schemas/openapi/gitlab-runner.yaml. Only tests use it.
package openapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/http/httptest"
	"path/filepath"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
)

// Contract is the document. It may be used by many goroutines.
type Contract struct {
	document *openapi3.T
	router   routers.Router
}

// Load reads and validates the document at root/schemas/openapi. root is that of the repository, relative to the folder
// of the test.
func Load(ctx context.Context, root string) (*Contract, error) {
	file := filepath.Join(root, "schemas", "openapi", "gitlab-runner.yaml")
	document, err := openapi3.NewLoader().LoadFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	if err := document.Validate(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	router, err := legacy.NewRouter(document)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &Contract{document, router}, nil
}

// Operations returns the names of all operations.
func (c *Contract) Operations() []string {
	var names []string
	for _, path := range c.document.Paths.Map() {
		for _, operation := range path.Operations() {
			names = append(names, operation.OperationID)
		}
	}
	return names
}

// Request returns the name of the operation, and why the document refuses the request. Bodies other than JSON are not
// checked.
func (c *Contract) Request(r *http.Request, body []byte) (string, error) {
	input, err := c.input(r)
	if err != nil {
		return "", err
	}
	name := input.Route.Operation.OperationID
	if input.Options.ExcludeRequestBody = !isJSON(r.Header); input.Options.ExcludeRequestBody {
		if want := input.Route.Operation.RequestBody; want != nil && want.Value.Required {
			if want.Value.Content.Get(r.Header.Get("Content-Type")) == nil {
				return name, fmt.Errorf("%s: the media type %q is not in the document", name, r.Header.Get("Content-Type"))
			}
		}
	}
	clone := r.Clone(r.Context())
	clone.Body, clone.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	input.Request = clone
	if err := openapi3filter.ValidateRequest(r.Context(), input); err != nil {
		return name, fmt.Errorf("%s: %w", name, err)
	}
	return name, nil
}

// Answer returns why the document does not allow the answer to the request. Bodies other than JSON are not checked.
func (c *Contract) Answer(r *http.Request, status int, header http.Header, body []byte) error {
	input, err := c.input(r)
	if err != nil {
		return err
	}
	name := input.Route.Operation.OperationID
	if status >= http.StatusBadRequest && !isJSON(header) {
		return fmt.Errorf("%s: the error %d is %q, not JSON", name, status, header.Get("Content-Type"))
	}
	input.Options.ExcludeResponseBody = !isJSON(header)
	input.Options.IncludeResponseStatus = true
	output := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: status, Header: header, Options: input.Options,
	}
	output.SetBodyBytes(body)
	if err := openapi3filter.ValidateResponse(r.Context(), output); err != nil {
		return fmt.Errorf("%s: %d: %w", name, status, err)
	}
	return nil
}

// Handler checks every exchange of next. report receives the faults: of an answer, and of a request that was accepted
// although the document refuses it.
func (c *Contract) Handler(next http.Handler, report func(error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		request := r.Clone(r.Context())
		request.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(r.Body, &body), r.Body}
		recorder := httptest.NewRecorder()
		next.ServeHTTP(recorder, request)
		answer := recorder.Result()
		raw := recorder.Body.Bytes()
		_, err := c.Request(r, body.Bytes())
		if answer.StatusCode >= http.StatusBadRequest {
			err = nil
		}
		if err == nil {
			err = c.Answer(r, answer.StatusCode, answer.Header, raw)
		}
		if err != nil {
			report(err)
		}
		maps.Copy(w.Header(), answer.Header)
		w.WriteHeader(answer.StatusCode)
		if len(raw) == 0 {
			return
		}
		if _, err := w.Write(raw); err != nil {
			report(fmt.Errorf("write the answer: %w", err))
		}
	})
}

func (c *Contract) input(r *http.Request) (*openapi3filter.RequestValidationInput, error) {
	route, parameters, err := c.router.FindRoute(r)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, err)
	}
	return &openapi3filter.RequestValidationInput{
		Request: r, PathParams: parameters, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
	}, nil
}

func isJSON(header http.Header) bool {
	media, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	return err == nil && media == "application/json"
}
