// grpc-js at the other end: `serve` prints its port, `call ADDRESS` calls everything and prints what came as JSON.
'use strict'
const path = require('path')
const grpc = require('@grpc/grpc-js')
const loader = require('@grpc/proto-loader')

const definition = loader.loadSync(path.join(__dirname, 'echo.proto'))
const Echo = grpc.loadPackageDefinition(definition).interop.Echo

function serve() {
  const heard = (call) => call.metadata.getMap()
  const server = new grpc.Server()
  server.addService(Echo.service, {
    Say(call, reply) {
      const { text, times } = call.request
      if (text.startsWith('fail ')) {
        const metadata = new grpc.Metadata()
        metadata.set('grpc-retry-pushback-ms', '250')
        return reply({ code: grpc.status[text.slice(5)], details: 'as told', metadata })
      }
      if (text === 'wait') return call.on('cancelled', () => console.log('cancelled'))
      reply(null, { text: text.repeat(times), heard: heard(call) })
    },
    Count(call) {
      for (let number = 0; number < call.request.times; number++) call.write({ text: call.request.text + number })
      call.end()
    },
    Sum(call, reply) {
      const texts = []
      call.on('data', (ask) => texts.push(ask.text))
      call.on('end', () => reply(null, { text: texts.join('') }))
    },
    Chat(call) {
      call.on('data', (ask) => call.write({ text: ask.text.repeat(ask.times) }))
      call.on('end', () => call.end())
    },
  })
  server.bindAsync('127.0.0.1:0', grpc.ServerCredentials.createInsecure(), (error, port) => {
    if (error) throw error
    console.log('port ' + port)
  })
}

function unary(client, ask, headers, deadlineMs) {
  const metadata = new grpc.Metadata()
  for (const [key, value] of Object.entries(headers)) metadata.set(key, value)
  return new Promise((resolve) => {
    const result = {}
    const call = client.Say(ask, metadata, { deadline: Date.now() + deadlineMs }, (error, told) => {
      if (error) Object.assign(result, { code: error.code, details: error.details })
      else Object.assign(result, told)
    })
    call.on('status', (status) => resolve({ ...result, trailers: Object.keys(status.metadata.getMap()).sort() }))
  })
}

function collect(call) {
  return new Promise((resolve, reject) => {
    const texts = []
    call.on('data', (told) => texts.push(told.text))
    call.on('end', () => resolve(texts))
    call.on('error', reject)
  })
}

async function call(address, version) {
  const client = new Echo(address, grpc.credentials.createInsecure())
  const headers = version ? { 'tri-service-version': version, tenant: 'blue' } : { tenant: 'blue' }
  const result = { say: await unary(client, { text: 'ab', times: 2 }, headers, 20000) }
  result.count = await collect(client.Count({ text: 'n', times: 3 }))
  result.sum = await new Promise((resolve, reject) => {
    const adding = client.Sum((error, told) => (error ? reject(error) : resolve(told.text)))
    for (const text of ['a', 'b', 'c']) adding.write({ text })
    adding.end()
  })
  const chatting = client.Chat()
  for (const text of ['x', 'y']) chatting.write({ text, times: 2 })
  chatting.end()
  result.chat = await collect(chatting)
  result.busy = await unary(client, { text: 'busy', times: 1 }, headers, 20000)
  result.late = await unary(client, { text: 'wait', times: 1 }, headers, 200)
  console.log(JSON.stringify(result))
  client.close()
}

if (process.argv[2] === 'serve') serve()
else call(process.argv[3], process.argv[4])
