-- Sends the requests of a file, one line each: METHOD TARGET. `order` is "each" (one after the
-- other, from the beginning again at the end) or "any" (uniformly at random); PUTs carry
-- `body_bytes` bytes that differ from request to request.
local lines, at, order, body, host = {}, 0, "any", "", "127.0.0.1"

function init(args)
  order, host = args[2], args[4]
  local bytes = tonumber(args[3])
  math.randomseed(tonumber(args[5]))
  local piece = {}
  for i = 1, bytes do piece[i] = string.char(math.random(0, 255)) end
  body = table.concat(piece)
  for line in io.lines(args[1]) do lines[#lines + 1] = line end
end

function request()
  if order == "each" then
    at = at % #lines + 1
  else
    at = math.random(#lines)
  end
  local line = lines[at]
  if line:sub(1, 4) == "PUT " then
    return line .. " HTTP/1.1\r\nHost: " .. host .. "\r\nContent-Length: " .. #body .. "\r\n\r\n" .. body
  end
  return line .. " HTTP/1.1\r\nHost: " .. host .. "\r\n\r\n"
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    "RESULT requests=%d micros=%d p50=%d p99=%d status=%d connect=%d read=%d write=%d timeout=%d bytes=%d\n",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.status, errors.connect, errors.read, errors.write, errors.timeout, summary.bytes))
end
