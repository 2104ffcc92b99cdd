package httpapi

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// node is an object of the specification.
type node = map[string]any

// spec checks answers and examples against openapi.yaml. It knows the part of JSON Schema that the file uses and
// refuses any other keyword, so that nothing is documented without being checked.
type spec struct{ root node }

func loadSpec(t *testing.T) spec {
	t.Helper()
	var root node
	require.NoError(t, yaml.Unmarshal(openapi, &root))
	return spec{root}
}

// at walks down from n and follows references on the way; nil when there is nothing.
func (s spec) at(n any, path ...string) any {
	n = s.resolve(n)
	for _, key := range path {
		m, ok := n.(node)
		if !ok {
			return nil
		}
		n = s.resolve(m[key])
	}
	return n
}

func (s spec) resolve(n any) any {
	m, ok := n.(node)
	if !ok {
		return n
	}
	ref, ok := m["$ref"].(string)
	if !ok {
		return n
	}
	target := s.at(s.root, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
	if target == nil {
		panic("dangling reference " + ref)
	}
	return target
}

// validate returns what is wrong with v, a value as encoding/json decodes it with UseNumber.
func (s spec) validate(schema any, v any, where string) []string {
	var wrong []string
	fail := func(format string, args ...any) { wrong = append(wrong, where+": "+fmt.Sprintf(format, args...)) }
	for keyword, want := range s.resolve(schema).(node) {
		switch keyword {
		case "description", "format", "properties", "example":
		case "type":
			if !hasType(v, want.(string)) {
				fail("%v is not a %s", v, want)
			}
		case "enum":
			if !slices.Contains(want.([]any), v) {
				fail("%v is none of %v", v, want)
			}
		case "pattern":
			if !regexp.MustCompile(want.(string)).MatchString(fmt.Sprint(v)) {
				fail("%v does not match %v", v, want)
			}
		case "minimum", "maximum":
			if n, bound := number(v), number(want); (keyword == "minimum" && n < bound) || (keyword == "maximum" && n > bound) {
				fail("%v breaks %s %v", v, keyword, want)
			}
		case "minLength", "maxLength":
			if n := len([]rune(fmt.Sprint(v))); (keyword == "minLength" && n < want.(int)) || (keyword == "maxLength" && n > want.(int)) {
				fail("%v breaks %s %v", v, keyword, want)
			}
		case "maxItems":
			if list, _ := v.([]any); len(list) > want.(int) {
				fail("has %d items", len(list))
			}
		case "items":
			list, _ := v.([]any)
			for i, item := range list {
				wrong = append(wrong, s.validate(want, item, fmt.Sprintf("%s[%d]", where, i))...)
			}
		case "required", "additionalProperties":
			wrong = append(wrong, s.validateObject(schema, v, where, keyword)...)
		default:
			fail("keyword %s is not known to this check", keyword)
		}
	}
	return wrong
}

func (s spec) validateObject(schema any, v any, where, keyword string) []string {
	var wrong []string
	object, _ := v.(node)
	if keyword == "required" {
		for _, name := range s.at(schema, "required").([]any) {
			if _, ok := object[name.(string)]; !ok {
				wrong = append(wrong, fmt.Sprintf("%s: %s is missing", where, name))
			}
		}
		return wrong
	}
	for name, value := range object { // additionalProperties is always false
		property := s.at(schema, "properties", name)
		if property == nil {
			wrong = append(wrong, fmt.Sprintf("%s: %s is not documented", where, name))
			continue
		}
		wrong = append(wrong, s.validate(property, value, where+"."+name)...)
	}
	return wrong
}

func hasType(v any, typ string) bool {
	switch typ {
	case "string":
		_, ok := v.(string)
		return ok
	case "integer":
		n := number(v)
		return n == math.Trunc(n)
	case "array":
		_, ok := v.([]any)
		return ok
	case "object":
		_, ok := v.(node)
		return ok
	}
	return false
}

// number is NaN for what is none, which no bound and no equality accepts.
func number(v any) float64 {
	switch v := v.(type) {
	case json.Number:
		if f, err := v.Float64(); err == nil {
			return f
		}
	case int:
		return float64(v)
	}
	return math.NaN()
}

// operation finds the operation of a request; nil when the specification has none.
func (s spec) operation(method, path string) any {
	for template, item := range s.root["paths"].(node) {
		pattern := regexp.MustCompile(`{\w+}`).ReplaceAllString(template, "[^/]+")
		if regexp.MustCompile("^" + pattern + "$").MatchString(path) {
			return s.at(item, strings.ToLower(method))
		}
	}
	return nil
}

// check holds an answer against the specification. Answers of the router itself are problems that it documents in
// its introduction.
func (s spec) check(t *testing.T, r *http.Request, status int, header http.Header, body []byte) {
	t.Helper()
	require.NotEmpty(t, header.Get("X-Request-Id"))
	contentType := header.Get("Content-Type")
	schema := s.at(s.root, "components", "schemas", "Problem")
	if op := s.operation(r.Method, r.URL.Path); op != nil {
		response := s.at(op, "responses", strconv.Itoa(status))
		require.NotNil(t, response, "%s %s: status %d is not documented", r.Method, r.URL.Path, status)
		headers, _ := s.at(response, "headers").(node)
		for name := range headers {
			require.NotEmpty(t, header.Get(name), "header %s", name)
		}
		schema = s.at(response, "content", contentType, "schema")
		require.NotNil(t, schema, "%s %s: %d: %s is not documented", r.Method, r.URL.Path, status, contentType)
	}
	if strings.HasSuffix(contentType, "json") {
		require.Empty(t, s.validate(schema, decodeNumbers(t, body), "body"))
	}
}

func decodeNumbers(t *testing.T, body []byte) any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(string(body)))
	dec.UseNumber()
	var v any
	require.NoError(t, dec.Decode(&v), string(body))
	return v
}

func TestSpecIsOpenAPI31(t *testing.T) {
	s := loadSpec(t)
	require.Equal(t, "3.1.0", s.root["openapi"])
	require.NotEmpty(t, s.at(s.root, "info", "title"))
	require.NotEmpty(t, s.at(s.root, "info", "version"))
	seen := map[string]bool{}
	s.eachOperation(func(name string, op any) {
		id, _ := s.at(op, "operationId").(string)
		require.NotEmpty(t, id, name)
		require.False(t, seen[id], "operationId %s", id)
		seen[id] = true
		require.NotEmpty(t, s.at(op, "summary"), name)
		require.NotNil(t, s.at(op, "responses", "500"), name)
	})
}

func (s spec) eachOperation(visit func(name string, op any)) {
	for path, item := range s.root["paths"].(node) {
		for method, op := range item.(node) {
			visit(strings.ToUpper(method)+" "+path, op)
		}
	}
}

// Every route of the router is in the specification, and every operation of the specification is a route.
func TestSpecHasTheRoutes(t *testing.T) {
	f := newStubbed(t, getFunc(nil))
	var routes, gets, heads, documented []string
	for _, r := range f.Handler.(*gin.Engine).Routes() {
		path := regexp.MustCompile(`:(\w+)`).ReplaceAllString(r.Path, "{$1}")
		switch r.Method {
		case http.MethodHead:
			heads = append(heads, path)
			continue
		case http.MethodGet:
			gets = append(gets, path)
		}
		routes = append(routes, r.Method+" "+path)
	}
	loadSpec(t).eachOperation(func(name string, _ any) { documented = append(documented, name) })
	require.ElementsMatch(t, documented, routes)
	require.ElementsMatch(t, gets, heads, "every GET answers HEAD")
}

// Path parameters are declared, references lead somewhere, and every example is valid under its schema.
func TestSpecIsConsistent(t *testing.T) {
	s := loadSpec(t)
	s.eachOperation(func(name string, op any) {
		var declared []string
		parameters, _ := s.at(op, "parameters").([]any)
		for _, p := range parameters {
			if s.at(p, "in") == "path" {
				declared = append(declared, s.at(p, "name").(string))
			}
			s.checkExample(t, name, s.at(p, "schema"), s.at(p, "example"))
		}
		var used []string
		for _, m := range regexp.MustCompile(`{(\w+)}`).FindAllStringSubmatch(name, -1) {
			used = append(used, m[1])
		}
		require.ElementsMatch(t, used, declared, name)
		s.checkContent(t, name, s.at(op, "requestBody", "content"))
		for status, response := range s.at(op, "responses").(node) {
			require.NotEmpty(t, s.at(response, "description"), "%s %s", name, status)
			s.checkContent(t, name+" "+status, s.at(response, "content"))
		}
	})
}

func (s spec) checkContent(t *testing.T, where string, content any) {
	t.Helper()
	media, _ := content.(node)
	for typ, body := range media {
		examples, _ := s.at(body, "examples").(node)
		if strings.HasSuffix(typ, "json") {
			require.NotEmpty(t, examples, "%s has no example", where)
		}
		for _, name := range sortedKeys(examples) {
			s.checkExample(t, where+" "+name, s.at(body, "schema"), s.at(examples[name], "value"))
		}
	}
}

func (s spec) checkExample(t *testing.T, where string, schema, value any) {
	t.Helper()
	if value == nil {
		return
	}
	b, err := json.Marshal(value)
	require.NoError(t, err)
	require.Empty(t, s.validate(schema, decodeNumbers(t, b), where))
}

func sortedKeys(m node) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// Every problem that the public code can make is in the list of types, and the list has no other.
func TestSpecListsTheProblems(t *testing.T) {
	made := []*problem{
		invalidRequest("", ""), notFound(), methodNotAllowed(""), bodyTooLarge(0), unsupportedMediaType(""), keyReused(),
		requestCanceled(), internalError(), overloaded(), unavailable(), outcomeUnknown(""),
	}
	s := loadSpec(t)
	types := make([]any, 0, len(made))
	for _, p := range made {
		types = append(types, p.Type)
	}
	require.ElementsMatch(t, s.at(s.root, "components", "schemas", "Problem", "properties", "type", "enum"), types)
}

func TestSpecIsServed(t *testing.T) {
	f := newStubbed(t, getFunc(nil))
	w := call(t, f, httptest.NewRequest(http.MethodGet, "/openapi.yaml", nil))
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, "application/yaml", w.Header().Get("Content-Type"))
	require.Equal(t, openapi, w.Body.Bytes())
}

// The check itself notices a wrong answer.
func TestSpecCheckNotices(t *testing.T) {
	s := loadSpec(t)
	schema := s.at(s.root, "components", "schemas", "Account")
	for _, bad := range []string{
		`{"user_id":7,"balance":0}`,
		`{"user_id":7,"balance":0,"records":null}`,
		`{"user_id":7.5,"balance":0,"records":[]}`,
		`{"user_id":0,"balance":0,"records":[]}`,
		`{"user_id":7,"balance":"0","records":[]}`,
		`{"user_id":7,"balance":0,"records":[],"more":1}`,
		`{"user_id":7,"balance":0,"records":[{"msg_id":"m","order_no":"o","type":"OTHER","points":1,"balance_after":1,"created_at":"2026-08-30T10:15:30.654321Z"}]}`,
		`{"user_id":7,"balance":0,"records":[{"msg_id":"m","order_no":"o","type":"EARN","points":1,"balance_after":1,"created_at":"2026-08-30T10:15:30Z"}]}`,
	} {
		require.NotEmpty(t, s.validate(schema, decodeNumbers(t, []byte(bad)), ""), bad)
	}
}
